"""Keeps the logs of a run that goes on for long within bounds.

A log is copied and emptied: the process that writes it has it open, and appends.  What it writes in the moment between
both is lost, a line at most.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

MAX_BYTES = 64 * 1024 * 1024
NUM_KEPT = 3
LOOK_S = 10.0


async def rotate_logs(folder: Path, *, max_bytes: int = MAX_BYTES, every_s: float = LOOK_S) -> None:
    """Until cancelled: look after every ``*.log`` of ``folder``."""
    while True:
        await asyncio.to_thread(_rotate_all, folder, max_bytes)
        await asyncio.sleep(every_s)


def rotate(path: Path, max_bytes: int, num_kept: int = NUM_KEPT) -> bool:
    """Move a log that has grown to ``max_bytes`` to ``<name>.1``, older ones on, and drop the oldest.

    Returns whether it was moved; a file that cannot be is left for the next time.
    """
    try:
        if path.stat().st_size < max_bytes:
            return False
        for number in range(num_kept - 1, 0, -1):
            if (older := _old(path, number)).exists():
                older.replace(_old(path, number + 1))
        shutil.copyfile(path, _old(path, 1))
        os.truncate(path, 0)
    except OSError:
        return False
    return True


def _rotate_all(folder: Path, max_bytes: int) -> None:
    for path in folder.glob("*.log"):
        rotate(path, max_bytes)


def _old(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
