"""Damage to KV on its way: bits of the staging rings of a receiver are flipped while frames lie in them."""

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

import psutil

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
    with woken_in_the_end(process.pid), _mapped() as rings:
        until_s = time.monotonic() + strike.lasting_s
        while not is_over:
            await hold_still(process)
            await asyncio.sleep(STILL_S)
            num_flips += rings.flip(process)
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


class _Rings:
    """Memory of the staging rings of a process, shared with it."""

    def __init__(self) -> None:
        self._memory: dict[int, mmap.mmap] = {}

    def flip(self, process: psutil.Process) -> int:
        """Flip a bit in every slot of the rings by which the process receives now; returns how many."""
        for fd in _received_by(process.pid):
            self._map(f"/proc/{process.pid}/fd/{fd}")
        num_flips = 0
        for memory in self._memory.values():
            for slot in range(0, len(memory), STRIDE):
                place = slot + secrets.randbelow(min(FIRST_BYTES, len(memory) - slot))
                memory[place] ^= 1 << secrets.randbelow(8)
                num_flips += 1
        return num_flips

    def _map(self, path: str) -> None:
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
    """Descriptors of rings that a process holds the lock of, as receivers do; it has those of its peers open, too.

    None for one that has ended.
    """
    found = []
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                is_ring = _RING.fullmatch(str(Path(entry.path).readlink()))
                if is_ring and " FLOCK " in Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text():
                    found.append(entry.name)
    return found


@contextmanager
def _mapped() -> Iterator[_Rings]:
    rings = _Rings()
    try:
        yield rings
    finally:
        rings.close()
