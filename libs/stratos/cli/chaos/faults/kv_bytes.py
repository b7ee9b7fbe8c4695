"""Damage to KV on its way: bits of the staging rings of a receiver are flipped while frames lie in them."""

from __future__ import annotations

import asyncio
import mmap
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from stratos.cli.chaos.faults.contract import NoEffect, Proof, Strike

INTEGRITY_METRIC = "stratos_kv_integrity_failures_total"
FLIP_S, PAUSE_S = 0.002, 0.001
"""By turns: a frame lies in its ring for a fraction of a millisecond. Other tasks run in the pauses."""
STRIDE = 4096
"""One bit of each so many bytes is flipped at a time: of every frame of a page or more."""
_RING = re.compile(r".*/kv-[0-9a-f]{32}\.ring( \(deleted\))?")


async def corrupt(strike: Strike) -> Proof:
    """Flip bits all the time; the receiver must say that it refused frames."""
    process = await strike.process()
    before = await strike.place.metric(strike.target, INTEGRITY_METRIC)
    until_s, num_flips = time.monotonic() + strike.lasting_s, 0
    with _mapped() as rings:
        while time.monotonic() < until_s:
            rings.look(process)
            num_flips += rings.flip(time.monotonic() + FLIP_S)
            if num_flips:
                strike.in_effect.set()
            await asyncio.sleep(PAUSE_S)
    strike.in_effect.set()  # where there was no ring, nothing else is waited for
    refused = await strike.place.metric(strike.target, INTEGRITY_METRIC) - before
    if refused <= 0:
        raise NoEffect(f"{num_flips} bits were flipped, but {strike.target} received no damaged frame")
    return {"pid": process.pid, "bits_flipped": num_flips, "frames_refused": int(refused)}


class _Rings:
    """Memory of the staging rings of a process, shared with it."""

    def __init__(self) -> None:
        self._memory: dict[int, mmap.mmap] = {}

    def look(self, process: psutil.Process) -> None:
        """Map rings that are new."""
        for pid in (process.pid, *(child.pid for child in process.children(recursive=True))):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(FileNotFoundError):
                    if _RING.fullmatch(str(Path(entry.path).readlink())):
                        self._map(entry.path)

    def _map(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if found.st_ino not in self._memory and found.st_size:
                self._memory[found.st_ino] = mmap.mmap(fd, found.st_size)
        finally:
            os.close(fd)

    def flip(self, until_s: float) -> int:
        """Flip a bit of every stretch, again and again; returns how many."""
        num_flips = 0
        while self._memory and time.monotonic() < until_s:
            for memory in self._memory.values():
                places = slice(secrets.randbelow(min(STRIDE, len(memory))), None, STRIDE)
                before = memory[places]
                bits = int.from_bytes(bytes([1 << secrets.randbelow(8)]) * len(before))
                memory[places] = (int.from_bytes(before) ^ bits).to_bytes(len(before))
                num_flips += len(before)
        return num_flips

    def close(self) -> None:
        while self._memory:
            self._memory.popitem()[1].close()


@contextmanager
def _mapped() -> Iterator[_Rings]:
    rings = _Rings()
    try:
        yield rings
    finally:
        rings.close()
