"""The end of a service's log, reduced to the reason of a failure: tracebacks stay in the file."""

from __future__ import annotations

import re
from pathlib import Path

MAX_READ_BYTES = 64 * 1024
_ERROR = re.compile(r"^\d\d:\d\d:\d\d ERROR +[\w-]+: (?P<message>.*)$")
_NOISE = re.compile(r"^(Traceback |The above exception|During handling|\s*$)|: settings: ")


def log_tail(path: Path, num_lines: int = 8) -> str:
    """The last lines, without the settings that a service prints at its start and without tracebacks."""
    kept: list[str] = []
    is_traceback = False
    for line in _lines(path):
        is_traceback = line.startswith("Traceback ") or (is_traceback and line[:1] in ("", " "))
        if not is_traceback and not _NOISE.search(line):
            kept.append(line)
    return "\n".join(kept[-num_lines:])


def logged_reason(path: Path) -> str:
    """Message of the last error in the log; empty when there is none."""
    found = [match["message"] for line in _lines(path) if (match := _ERROR.match(line))]
    return found[-1] if found else ""


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_READ_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
