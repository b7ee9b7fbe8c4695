"""A guarded command ends when its parent is killed."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from stratos.cli.local.guard import main
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import gone

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "stratos.cli.local.guard", str(os.getpid()), "--", "sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        wait_until(lambda: child.cmdline() == ["sleep", "60"], what="the guarded command")
        parent.kill()
        wait_until(lambda: gone([child]))


def test_an_unguarded_command_would_stay() -> None:
    # The control: without the guard the same death leaves the child running.
    code = PARENT.replace('sys.executable, "-m", "stratos.cli.local.guard", str(os.getpid()), "--", ', "")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        assert not gone([child])
        child.kill()


def test_a_parent_that_is_gone_already_starts_nothing() -> None:
    argv = [sys.executable, "-m", "stratos.cli.local.guard", "1", "--", "echo", "started"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1 or os.getpid() == 1
    assert "started" not in done.stdout


def test_wrong_arguments(capsys) -> None:
    assert main(["x", "--", "echo"]) == 2
    assert main(["1", "echo"]) == 2
    assert "usage" in capsys.readouterr().err
