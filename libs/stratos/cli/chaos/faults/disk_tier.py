"""Damage to KV on disk: files of a worker's disk tier get a flipped bit, are cut short, or are removed.

Nothing is undone: a file that is damaged is a block that is computed, and the worker removes it when it finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from stratos.cli.chaos.faults.contract import NoEffect, Proof, Strike

DISK_METRIC = "stratos_kv_disk_not_loaded_blocks_total"
REASONS = ("damaged", "other_key", "error")
"""Why blocks are not loaded whose files were damaged: by where the bit was; "error" where there is no file."""
PAUSE_S = 0.2


def _flip(path: Path, number: int) -> None:
    with path.open("r+b") as file:
        place = number * 7919 % os.fstat(file.fileno()).st_size
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << number % 8]))


def _cut(path: Path, number: int) -> None:
    os.truncate(path, number * 7919 % path.stat().st_size)


def _remove(path: Path, _: int) -> None:
    path.unlink()


DAMAGES: tuple[tuple[str, Callable[[Path, int], None]], ...] = (("flipped", _flip), ("cut", _cut), ("removed", _remove))
"""Done by turns."""


async def corrupt_disk(strike: Strike) -> Proof:
    """Damage every file, also those that come later; the worker must say that it could not load them."""
    process = await strike.process()
    folder, damaged, seen = strike.place.kv_path(strike.target), Counter[str](), dict[Path, tuple[int, int]]()
    before, until_s, is_over = await _refused(strike), time.monotonic() + strike.lasting_s, False
    while not is_over:
        await asyncio.to_thread(_damage_all, folder, damaged, seen)
        if damaged:
            strike.in_effect.set()
        await asyncio.sleep(PAUSE_S)
        is_over = time.monotonic() >= until_s
    if not damaged:
        raise NoEffect(f"{strike.target} has no KV on disk (stratos up --kv-disk) in {folder}, so no file was damaged")
    found = await _refused(strike) - before
    if found <= 0:
        raise NoEffect(f"{damaged.total()} files were damaged, but {strike.target} loaded none of them")
    return {"pid": process.pid, **damaged, "refused_blocks": int(found)}


def _damage_all(folder: Path, damaged: Counter[str], seen: dict[Path, tuple[int, int]]) -> None:
    for path in sorted(folder.glob("*/*/*.kv")):
        number = damaged.total()
        name, damage = DAMAGES[number % len(DAMAGES)]
        with contextlib.suppress(FileNotFoundError):  # the worker was faster
            if seen.get(path) == _version(path):
                continue
            damage(path, number + 1)
            damaged[name] += 1
            if name != "removed":
                seen[path] = _version(path)


def _version(path: Path) -> tuple[int, int]:
    """Tells a file from the one that the worker writes in its place, which may get the same inode."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


async def _refused(strike: Strike) -> float:
    return await strike.place.metric(strike.target, DISK_METRIC, REASONS)
