#!/usr/bin/env python3
"""Draw a terminal session into docs/pictures/terminal.svg: a real start of the platform and a real streamed answer.

python -m scripts.docs.draw_terminal [--out docs/pictures/terminal.svg]

Nothing is written by hand: the lines are those of `make run` and `curl`. Long ones are cut at the picture's width, the
answer's events in the middle are left out, the checkout's folder is shown as ~/stratosserve and the key by its start.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
WIDTH, NUM_EVENTS = 112, 4
QUESTION = {
    "model": "base",
    "messages": [{"role": "user", "content": "Write the function read_lines."}],
    "stream": True,
}
_KEY, _URL = re.compile(r"sk-\S+"), re.compile(r"http://\S+/v1")
_LAST_LINE = "Models"
_BEFORE_DELTA = re.compile(r'(data: \{"id":"chatcmpl-.{6}).*(?="delta")')
_WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""The picture is shown with the reader's own fonts: nothing is fetched for it."""


@contextmanager
def running_platform(folder: Path) -> Iterator[list[str]]:
    """A platform of this checkout; yields what it printed up to its table of models."""
    command = [sys.executable, "-m", "stratos.cli", "up", "--data-dir", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield list(_printed(process))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def _printed(process: subprocess.Popen[str]) -> Iterator[str]:
    for line in process.stdout or ():
        yield line.rstrip("\n")
        if line.strip().startswith(_LAST_LINE):
            return
    raise SystemExit(f"the platform ended with {process.wait()} before it was ready")


def ask(url: str, key: str) -> list[str]:
    """Lines that curl prints for the question; the first events, and the end."""
    command = ["curl", "-sN", f"{url}/chat/completions", "-H", f"Authorization: Bearer {key}"]
    command += ["-H", "Content-Type: application/json", "-d", json.dumps(QUESTION)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    events = [_BEFORE_DELTA.sub(r"\1…", line) for line in lines if line]
    return [*events[:NUM_EVENTS], "…", events[-1]]


def _replaced(line: str, words: dict[str, str]) -> str:
    for word, instead in words.items():
        line = line.replace(word, instead)
    return line


def draw(lines: list[str]) -> str:
    """SVG of a terminal with ``lines``; commands begin with "$ "."""
    console = Console(record=True, width=WIDTH, file=StringIO(), color_system="truecolor")
    for line in lines:
        cut = line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
        style = "bold" if line.startswith("$ ") else "green" if " serving " in line else ""
        console.print(Text(cut, style=style), no_wrap=True)
    return _WEB_FONT.sub("", console.export_svg(title="StratosServe"))


def main() -> int:
    """Run, ask, draw; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures" / "terminal.svg", help="the picture")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_platform(Path(folder) / "data") as started:
        text = "\n".join(started)
        key, url = _KEY.search(text), _URL.search(text)
        assert key, "no key in what the platform printed"
        assert url, "no URL in what the platform printed"
        answer = ask(url[0], key[0])
        shown = [
            line.replace(folder, "~/stratosserve/.stratos").replace(str(ROOT), "~/stratosserve") for line in started
        ]
    question = f"$ curl -N {url[0]}/chat/completions -H \"Authorization: Bearer $KEY\" -d '{json.dumps(QUESTION)}'"
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(draw(["$ make run", *shown, "", question, *answer]), encoding="utf-8")
    print(f"{os.path.relpath(arguments.out, ROOT)}: {len(shown) + len(answer)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
