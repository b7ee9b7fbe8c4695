"""Damage to KV at rest: bits are flipped in the host tier of a worker, and flipped back in the end."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from stratos.cli.chaos.faults.contract import NoEffect, Proof, Strike
from stratos.cli.chaos.faults.kv_bytes import STRIDE, open_as

TIER_METRIC = "stratos_kv_host_damaged_blocks_total"
PAUSE_S = 0.2
MAX_REGIONS = 1 << 16
"""Of a file, so that a round takes a tenth of a second."""
WORD, WORDS = 8, 16
"""Bytes of a word, and of the two by which a damaged place is known again."""
_TIER = re.compile(r"/memfd:stratos-kv-host( \(deleted\))?")
"""As ``engine.memory.host_pages`` calls it, which this module does not import for torch's sake."""


async def corrupt_tier(strike: Strike) -> Proof:
    """Flip bits of what lies in host memory; the worker must say that it loaded damaged blocks."""
    process = await strike.process()
    before = await strike.place.metric(strike.target, TIER_METRIC)
    num_flips, is_over, until_s = 0, False, time.monotonic() + strike.lasting_s
    with ExitStack() as stack:
        paths = (open_as(one.pid, _TIER) for one in (process, *process.children(recursive=True)))
        files = [stack.enter_context(_TierFile(path)) for found in paths for path in found]
        pool = stack.enter_context(ThreadPoolExecutor(1))  # has ended before the files heal
        while not is_over:
            for file in files:
                num_flips += await asyncio.wrap_future(pool.submit(file.damage))
            if num_flips:
                strike.in_effect.set()
            await asyncio.sleep(PAUSE_S)
            is_over = time.monotonic() >= until_s
    if not num_flips:
        raise NoEffect(f"{strike.target} has nothing in a host tier (RUNNER__HOST_POOL_BYTES), so no bit was flipped")
    found = await strike.place.metric(strike.target, TIER_METRIC) - before
    if found <= 0:
        raise NoEffect(f"{num_flips} bits were flipped, but {strike.target} loaded no damaged block")
    return {"pid": process.pid, "bits_flipped": num_flips, "damaged_blocks": int(found)}


@dataclass
class _TierFile:
    """A file of memory, and what was damaged in it.

    Each of its regions has a bit of its own, so that no two flips within 64 of them can hide each other from a sum.
    """

    path: str
    _fd: int = field(init=False)
    _damaged: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Place -> the bit that was flipped, and the bytes with it."""

    def __enter__(self) -> _TierFile:
        self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        """Flip back where the damage still is: what was written since is another block's."""
        try:
            for place, (bit, content) in self._damaged.items():
                if os.pread(self._fd, WORDS, place) == content:
                    self._flip(place, bit)
        finally:
            os.close(self._fd)

    def damage(self) -> int:
        """Flip a bit in every region that has none flipped; returns how many."""
        num_flips = 0
        for index, place in self._regions():
            if place in self._damaged and os.pread(self._fd, WORDS, place) == self._damaged[place][1]:
                continue
            bit = index % (8 * WORD)
            self._flip(place, bit)
            self._damaged[place] = bit, os.pread(self._fd, WORDS, place)
            num_flips += 1
        return num_flips

    def _flip(self, place: int, bit: int) -> None:
        at = place + bit // 8
        os.pwrite(self._fd, bytes([os.pread(self._fd, 1, at)[0] ^ 1 << bit % 8]), at)

    def _regions(self) -> Iterator[tuple[int, int]]:
        """Number and place of those that were ever written: the others take no memory, and shall not."""
        size = os.fstat(self._fd).st_size
        step = STRIDE * -(-size // (STRIDE * MAX_REGIONS))
        for index, begin in enumerate(range(0, size, step)):
            try:
                found = os.lseek(self._fd, begin, os.SEEK_DATA)
            except OSError:  # nothing more
                return
            if found < begin + step:
                yield index, found
