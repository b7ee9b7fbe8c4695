"""Lets a process go on that stands still, also where the one that stopped it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_WAKE_AT_END_OF_INPUT = 'read -r line || kill -CONT "$1"'


@contextmanager
def woken_in_the_end(pid: int) -> Iterator[None]:
    """Send SIGCONT on leaving; a child does so whose input ends with this process, by SIGKILL too."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", _WAKE_AT_END_OF_INPUT, "sh", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a signal for the terminal's processes is not for it
    )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        with suppress(BrokenPipeError):
            child.communicate(b"woken\n")
