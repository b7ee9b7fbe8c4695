"""Rows and platforms that are stopped leave no process, however they are."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stratos.cli.reproduce.running import STOP_S
from stratos.reproduce.load import local_platform
from stratos.reproduce.load.local_platform import Platform
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S, wait_until

KILLED = """
import os, pathlib, subprocess, sys
row = [sys.executable, "-m", "stratos.reproduce", "all-on", "--form", "full", "--model", sys.argv[1],
       "--folder", sys.argv[2], "--out", sys.argv[2] + "/row.json"]
child = subprocess.Popen(row, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
def caught():
    lines = pathlib.Path(f"/proc/{child.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("SigCgt")).split()[1], 16)
while not caught() >> 14 & 1: assert child.poll() is None
os.kill(os.getpid(), 9)
"""
"""A command that dies once its row, one of a quarter of an hour, is at work: it catches SIGTERM from then on."""
SILENT = """#!/bin/sh
echo $$ > "$3/pid"
exec sleep 600 >&- 2>&-
"""
"""A program that says nothing, and stays."""


def test_a_row_ends_with_the_command_that_is_killed(tmp_path: Path) -> None:
    """By no signal of its own: the command has no time to send one."""
    command = [sys.executable, "-c", KILLED, str(ROOT / "models" / "base"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_until(lambda: not psutil.pid_exists(int(done.stdout)), "the row has ended", timeout_s=LIMIT_S)


def test_a_platform_that_does_not_say_where_it_is_ends_with_what_waited_for_it(tmp_path: Path) -> None:
    program = tmp_path / "stratos"
    program.write_text(SILENT)
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="the platform ended before it printed its URL and key"):
        Platform(str(tmp_path), (), program)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_platform_has_less_time_to_end_than_a_row_that_is_stopped() -> None:
    assert local_platform.STOP_S < STOP_S
