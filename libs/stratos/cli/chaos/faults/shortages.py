"""Faults of a process that gets no more of something: room on disk, memory.

Both are limits of the kernel for that one process (``prlimit``), so nothing else on the machine suffers.
"""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import psutil

from stratos.cli.chaos.faults.contract import NoEffect, Proof, Strike
from stratos.cli.chaos.faults.waking import undone_in_the_end

SPARE_BYTES = 1 << 20
"""Address space that a process short of memory may still take."""
_SET_BACK = """
import resource
pid, kind, soft, hard = map(int, sys.argv[1:])
try:
    resource.prlimit(pid, kind, (soft, hard))
except ProcessLookupError:  # it has ended
    pass
"""


async def full_disk(strike: Strike) -> Proof:
    """No file of the process can grow: writes fail, with EFBIG where a full disk says ENOSPC."""
    process = await strike.process()
    sizes = _written(process)
    await _hold_limit(strike, process, resource.RLIMIT_FSIZE, 0)
    grown = {path for path, size in _written(process).items() if size > sizes.get(path, size)}
    if grown:
        raise NoEffect(f"files of process {process.pid} grew: {', '.join(sorted(grown))}")
    return {"pid": process.pid, "full_s": strike.lasting_s, "files": len(sizes), "grown": 0}


async def short_memory(strike: Strike) -> Proof:
    """The process can map next to nothing more: allocations beyond what it has fail."""
    process = await strike.process()
    limit = process.memory_info().vms + SPARE_BYTES
    await _hold_limit(strike, process, resource.RLIMIT_AS, limit)
    size = process.memory_info().vms
    if size > limit:
        raise NoEffect(f"process {process.pid} grew to {size} bytes beyond its limit of {limit}")
    return {"pid": process.pid, "short_s": strike.lasting_s, "address_space": size, "limit": limit}


async def _hold_limit(strike: Strike, process: psutil.Process, kind: int, limit: int) -> None:
    soft, hard = resource.prlimit(process.pid, kind)
    with undone_in_the_end(_SET_BACK, process.pid, kind, soft, hard):
        resource.prlimit(process.pid, kind, (limit, hard))
        strike.in_effect.set()
        await asyncio.sleep(strike.lasting_s)
        if process.status() == psutil.STATUS_ZOMBIE or resource.prlimit(process.pid, kind)[0] != limit:
            raise NoEffect(f"process {process.pid} did not live under its limit to the end")


def _written(process: psutil.Process) -> dict[str, int]:
    """Files that a process has open for writing -> bytes."""
    paths = {Path(file.path) for file in process.open_files() if getattr(file, "mode", "r") != "r"}
    return {str(path): path.stat().st_size for path in paths if path.exists()}
