#!/usr/bin/env python3
"""Count the files that one streamed chat request passes, from its bytes to its bill, on a platform of this machine.

python -m scripts.docs.chat_path [--root CHECKOUT] [--list]

Every process of `stratos up` records in which files of ours it calls functions, from a signal before the request until
one after it. A second window of the same length without a request shows what runs anyway (statuses, probes, leases).
Prefill and decode are processes of their own, engines are threads, and the model is the shipped one.
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
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IDLE_S = 3.0
PROMPTS = ("Write the function read_lines. " * 8, "Say what the module shelve is good for. " * 8)
"""Two, because the second one's KV must be new to both workers."""
_RECORDER = """
import atexit, os, signal, sys, threading
ROOT, OUT = os.environ["CHAT_PATH_ROOT"], os.environ["CHAT_PATH_OUT"]
seen, window = set(), [0]
def profile(frame, event, _argument):
    if window[0] and event == "call":
        seen.add((window[0], frame.f_code.co_filename))
def turn(_number, _frame):
    window[0] = {0: 1, 1: 2, 2: 3, 3: 0}[window[0]]
    with open(f"{OUT}/{os.getpid()}", "w") as file:
        file.writelines(f"{number} {name}\\n" for number, name in list(seen) if name.startswith(ROOT))
    with open(f"{OUT}/{os.getpid()}.turns", "a") as file:
        file.write("x")
if "stratos" in " ".join(sys.orig_argv):
    signal.signal(signal.SIGUSR2, turn)
    threading.setprofile(profile)
    sys.setprofile(profile)
"""


def processes_of(pid: int) -> list[int]:
    """Pids of the platform's Python processes."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [child for name in found for child in (int(name), *processes_of(int(name)))]


def turn_window(pids: list[int], out: Path) -> None:
    """Begin the next window in every process, and return when all have."""
    before = {pid: _turns(out, pid) for pid in pids}
    for pid in pids:
        os.kill(pid, signal.SIGUSR2)
    while any(_turns(out, pid) == before[pid] for pid in pids):
        time.sleep(0.01)


def _turns(out: Path, pid: int) -> int:
    path = out / f"{pid}.turns"
    return path.stat().st_size if path.exists() else 0


def ask(url: str, key: str, prompt: str) -> None:
    """One streamed answer."""
    body = {"model": "base", "messages": [{"role": "user", "content": prompt}], "stream": True, "max_tokens": 16}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert b"[DONE]" in answer.read()


def record(root: Path, folder: Path) -> dict[int, set[str]]:
    """Files by window: 1 is the request's, 2 the idle one."""
    (folder / "sitecustomize.py").write_text(_RECORDER)
    roots = [folder, root / "libs", *(path for path in (root / "services").iterdir() if path.is_dir())]
    environ = {**os.environ, "CHAT_PATH_ROOT": str(root), "CHAT_PATH_OUT": str(folder)}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, roots))
    command = [sys.executable, "-m", "stratos.cli", "up", "--no-fork-server", "--data-dir", str(folder / "data")]
    platform = subprocess.Popen(
        [*command, "--max-decode", "1"], cwd=root, env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        text = ""
        while "Models" not in text:
            text += platform.stdout.readline() if platform.stdout else ""
        key, url = re.search(r"sk-\S+", text), re.search(r"http://\S+/v1", text)
        assert key, text
        assert url, text
        ask(url[0], key[0], PROMPTS[0])  # the first one of all opens sessions and caches
        pids = [pid for pid in processes_of(platform.pid) if b"stratos_" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        turn_window(pids, folder)
        begin = time.monotonic()
        ask(url[0], key[0], PROMPTS[1])
        time.sleep(IDLE_S)  # the bill is written in batches
        turn_window(pids, folder)
        time.sleep(time.monotonic() - begin)
        turn_window(pids, folder)
    finally:
        platform.send_signal(signal.SIGINT)
        platform.communicate()
    lines = [line for pid in pids for line in (folder / str(pid)).read_text().splitlines()]
    return {window: {line[2:] for line in lines if line.startswith(f"{window} ")} for window in (1, 2)}


def main() -> int:
    """Record, count, print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout that runs")
    parser.add_argument("--list", action="store_true", help="print the files too")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    with tempfile.TemporaryDirectory() as folder:
        windows = record(root, Path(folder))
    names = {
        window: {os.path.relpath(name, root) for name in files if "/api/" not in name and "/.venv/" not in name}
        for window, files in windows.items()
    }
    rooms: dict[str, int] = {}
    for name in names[1]:
        room = "/".join(name.split("/")[1:3])
        rooms[room] = rooms.get(room, 0) + 1
    lines = sum(len((root / name).read_text().splitlines()) for name in names[1])
    print(f"{len(names[1])} files, {lines} lines; {len(names[1] & names[2])} of them run without a request, too")
    print("\n".join(f"  {count:4d}  {room}" for room, count in sorted(rooms.items())))
    if arguments.list:
        print("\n".join(sorted(names[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
