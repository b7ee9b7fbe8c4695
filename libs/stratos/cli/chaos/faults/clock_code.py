"""Changes code of a process that runs. The child that undoes it runs this text: it has the standard library alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

Patch = tuple[int, str, str]
"""Address, bytes that are there, bytes that come there, both in hexadecimal digits."""
LIMIT_S, PAUSE_S = 30.0, 0.001
"""Most time until a process stands still outside of what is changed, and between two looks."""


def write_code(pid: int, patches: Sequence[Patch], is_over: Callable[[], bool] = lambda: False) -> None:
    """Change code of a process that stands still outside of it; it goes on afterwards.

    Args:
        pid: of the process.
        patches: what is changed.
        is_over: it is not wanted any more.

    Raises:
        OSError: its memory may not be written, is not what the patches say, or it does not stand still in time.
    """
    until_s = time.monotonic() + LIMIT_S
    while not is_over():
        os.kill(pid, signal.SIGSTOP)
        try:
            if _stands_still(pid, until_s, is_over) and _is_outside(pid, patches) and not is_over():
                _write(pid, patches)
                return
        finally:
            os.kill(pid, signal.SIGCONT)
        if time.monotonic() > until_s:
            raise OSError(f"process {pid} did not stand still outside of its clock functions in {LIMIT_S:g} s")
        time.sleep(PAUSE_S)


def has_code(pid: int, patches: Sequence[Patch]) -> bool:
    """Whether a process has any of the new bytes; one that has ended has none.

    Raises:
        PermissionError: its memory may not be read.
    """
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            return any(
                os.pread(memory.fileno(), len(after) // 2, address).hex() == after for address, _, after in patches
            )
    except PermissionError:
        raise
    except OSError:  # it has ended, or has nothing there
        return False


def _stands_still(pid: int, until_s: float, is_over: Callable[[], bool]) -> bool:
    """Wait until every thread is stopped: each stops by itself, where it is given a core."""
    while True:
        states = set()
        for path in Path(f"/proc/{pid}/task").glob("*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
                states.add(path.read_text().rpartition(")")[2].split()[0])
        if states <= {"T", "t", "Z", "X"}:
            return True
        if is_over() or time.monotonic() > until_s:
            return False
        time.sleep(PAUSE_S)


def _is_outside(pid: int, patches: Sequence[Patch]) -> bool:
    """Whether no thread is within what is changed."""
    places = []
    for path in Path(f"/proc/{pid}/task").glob("*/syscall"):
        with suppress(FileNotFoundError, ProcessLookupError):
            words = path.read_text().split()
            if words == ["running"]:
                return False
            places.append(int(words[-1], 16))
    ranges = [range(address, address + len(after) // 2) for address, _, after in patches]
    return not any(place in code for place in places for code in ranges)


def _write(pid: int, patches: Sequence[Patch]) -> None:
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        for address, before, after in patches:
            found = os.pread(memory.fileno(), len(before) // 2, address).hex()
            if not found:
                raise ProcessLookupError(f"process {pid} has ended")
            if found not in (before, after):
                raise OSError(f"the clock functions of process {pid} are not those of this kernel")
            os.pwrite(memory.fileno(), bytes.fromhex(after), address)
