"""Damage to KV on its way: bits are flipped in the staging rings of a receiver while frames lie in them."""

from __future__ import annotations

import asyncio
import mmap
import os
import re
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stratos.cli.chaos.faults.contract import NoEffect, Proof, Strike
from stratos.cli.chaos.faults.processes import hold_still
from stratos.cli.chaos.faults.waking import woken_in_the_end

INTEGRITY_METRIC = "stratos_kv_integrity_failures_total"
STILL_S, MOVING_S = 0.05, 0.02
"""Frames are read within a millisecond; those that come while their receiver stands still lie there to be damaged."""
STRIDE, FIRST_BYTES = 65536, 4096
"""Slots begin at multiples of the one; a bit of the other is flipped in each."""
_RING = re.compile(r".*/kv-[0-9a-f]{32}\.ring( \(deleted\))?")


async def corrupt(strike: Strike) -> Proof:
    """Flip bits of all slots, while the receiver stands still by turns; it must say that it refused frames."""
    process = await strike.process()
    before = await strike.place.metric(strike.target, INTEGRITY_METRIC)
    num_flips, is_over = 0, False
    with woken_in_the_end(process.pid), _mapped() as memory:
        until_s = time.monotonic() + strike.lasting_s
        while not is_over:
            await hold_still(process)
            await asyncio.sleep(STILL_S)
            for path in _received_by(process.pid):
                memory.add(path)
            num_flips += memory.flip()
            os.kill(process.pid, signal.SIGCONT)
            if num_flips:
                strike.in_effect.set()
            await asyncio.sleep(MOVING_S)
            is_over = time.monotonic() >= until_s
    if not num_flips:
        raise NoEffect(f"{strike.target} has no ring by which it receives KV, so no bit was flipped")
    refused = await strike.place.metric(strike.target, INTEGRITY_METRIC) - before
    if refused <= 0:
        raise NoEffect(f"{num_flips} bits were flipped, but {strike.target} received no damaged frame")
    return {"pid": process.pid, "bits_flipped": num_flips, "frames_refused": int(refused)}


class _Memory:
    """Files of memory of a process, shared with it."""

    def __init__(self) -> None:
        self._memory: dict[int, mmap.mmap] = {}

    def flip(self) -> int:
        """Flip a bit in every region; returns how many."""
        num_flips = 0
        for memory in self._memory.values():
            for begin in range(0, len(memory), STRIDE):
                place, bit = begin + secrets.randbelow(min(FIRST_BYTES, len(memory) - begin)), secrets.randbelow(8)
                memory[place] ^= 1 << bit
                num_flips += 1
        return num_flips

    def add(self, path: str) -> None:
        """Map a file, unless it is mapped already."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # closed by now
            return
        try:
            found = os.fstat(fd)
            if found.st_ino not in self._memory and found.st_size:
                self._memory[found.st_ino] = mmap.mmap(fd, found.st_size)
        finally:
            os.close(fd)

    def close(self) -> None:
        while self._memory:
            self._memory.popitem()[1].close()


def _received_by(pid: int) -> list[str]:
    """Rings that a process holds the lock of, as receivers do; it has those of its peers open, too."""
    found = []
    for path in open_as(pid, _RING):
        with suppress(OSError):
            if " FLOCK " in Path(path.replace("/fd/", "/fdinfo/")).read_text():
                found.append(path)
    return found


def open_as(pid: int, name: re.Pattern[str]) -> list[str]:
    """Paths of a process's open files of a name; none of one that has ended."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if name.fullmatch(str(Path(entry.path).readlink())):
                    found.append(entry.path)
    return found


@contextmanager
def _mapped() -> Iterator[_Memory]:
    memory = _Memory()
    try:
        yield memory
    finally:
        memory.close()
