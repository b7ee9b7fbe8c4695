"""A platform of ``stratos up`` that a row or a benchmark starts, loads and stops."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

STOP_S = 20.0
"""Less than a row has that is stopped: what it started would outlive it."""
_ROOT = Path(__file__).resolve().parents[4]


def interrupt(process: subprocess.Popen[Any], within_s: float) -> int:
    """Ctrl-C; by force after ``within_s`` seconds, with which its own processes end, too. Returns its exit code."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class Platform:
    """``stratos up`` as a child process.

    Args:
        data_dir: its data directory.
        extra: more arguments.
        program: ``stratos`` of another checkout; ``None`` is this one's.
        env: added to the environment.
    """

    def __init__(
        self,
        data_dir: str,
        extra: tuple[str, ...],
        program: Path | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.data_dir = data_dir
        program = program or Path(sys.executable).with_name("stratos")
        command = [str(program), "up", "--data-dir", data_dir, *extra]
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=_ROOT, env={**os.environ, **env}
        )
        try:
            self.url = self._read(r"(http://\S+/v1)")
            self.key = self._read(r"(sk-[0-9a-f-]+)")
        except BaseException:  # also Ctrl-C: what has started would outlive its row
            self.stop()
            raise
        self.start_s = time.perf_counter() - self.started

    def _read(self, pattern: str) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if match := re.search(pattern, line):
                return match[1]
        raise RuntimeError(f"the platform ended before it printed its URL and key:\n{''.join(lines)}")

    def stop(self, within_s: float = STOP_S) -> None:
        """Ctrl-C and wait; by force after ``within_s``, so that what was measured is not lost with it."""
        interrupt(self.process, within_s)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def running_platform(
    *arguments: str, data_dir: str = "", program: Path | None = None, env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Platform]:
    """A platform with these arguments of ``stratos up``; its data directory is a new one unless it is given."""
    with nullcontext(data_dir) if data_dir else tempfile.TemporaryDirectory() as folder:
        platform = Platform(folder, arguments, program, env)
        try:
            yield platform
        finally:
            platform.stop()
