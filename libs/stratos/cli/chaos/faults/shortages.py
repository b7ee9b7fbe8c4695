"""Faults of a process that gets no more of something: room on disk, memory.

Both are limits of the kernel for that one process (``prlimit``), so nothing else on the machine suffers.  The proof
is that the limit held, not that the process missed anything.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil

from stratos.cli.chaos.faults.contract import NoEffect, Proof, Strike
from stratos.cli.chaos.faults.waking import undone_in_the_end

Measured = TypeVar("Measured")
SPARE_BYTES = 1 << 20
"""Address space that a process short of memory may still take."""
_SET_BACK = """
import resource
pid, kind, limit, soft, hard = map(int, sys.argv[1:])
parents, found = {}, [pid]
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{name}/stat") as file:
            parents.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
    except OSError:  # it has ended
        pass
for one in found:
    found += parents.get(one, [])
    try:
        if one == pid or resource.prlimit(one, kind)[0] == limit:
            resource.prlimit(one, kind, (soft, hard))
    except ProcessLookupError:
        pass
"""
"""Also for what it started under the limit, which was born with it."""


async def full_disk(strike: Strike) -> Proof:
    """No file of the process can grow: writes fail, with EFBIG where a full disk says ENOSPC."""
    process = await strike.process()
    if not _survives(process.pid, signal.SIGXFSZ):
        raise NoEffect(f"{strike.target} (process {process.pid}) would be killed by SIGXFSZ, which is not a full disk")
    sizes = _written(process)
    later = await _hold_limit(strike, process, resource.RLIMIT_FSIZE, 0, lambda: _written(process))
    grown = {path for path, size in later.items() if size > sizes.get(path, size)}
    if grown:
        raise NoEffect(f"files of process {process.pid} grew: {', '.join(sorted(grown))}")
    return {"pid": process.pid, "full_s": strike.lasting_s, "files": len(sizes), "grown": 0}


async def short_memory(strike: Strike) -> Proof:
    """The process can map next to nothing more: allocations beyond what it has fail."""
    process = await strike.process()
    limit = process.memory_info().vms + SPARE_BYTES
    size = await _hold_limit(strike, process, resource.RLIMIT_AS, limit, lambda: int(process.memory_info().vms))
    if size > limit:
        raise NoEffect(f"process {process.pid} grew to {size} bytes beyond its limit of {limit}")
    return {"pid": process.pid, "short_s": strike.lasting_s, "address_space": size, "limit": limit}


async def _hold_limit(
    strike: Strike, process: psutil.Process, kind: int, limit: int, measured: Callable[[], Measured]
) -> Measured:
    """Returns what is measured at the end, while the limit still holds."""
    with _only_one(process.pid, kind) as place:
        soft, hard = resource.prlimit(process.pid, kind)
        by_hand = f"limit {kind} of process {process.pid} must be {soft}; set it by prlimit, or start the process again"
        with undone_in_the_end(_SET_BACK, process.pid, kind, limit, soft, hard, by_hand=by_hand) as hold:
            hold(place.fileno())
            resource.prlimit(process.pid, kind, (limit, hard))
            strike.in_effect.set()
            await asyncio.sleep(strike.lasting_s)
            result = measured()
            if process.status() == psutil.STATUS_ZOMBIE or resource.prlimit(process.pid, kind)[0] != limit:
                raise NoEffect(f"process {process.pid} did not live under its limit to the end")
            return result


@contextmanager
def _only_one(pid: int, kind: int) -> Iterator[socket.socket]:
    """Place of the one fault that may change a limit: a second one would take its value for the true one.

    A name of the kernel's, no file; it is free again when each process that has the socket has closed it.
    """
    with socket.socket(socket.AF_UNIX) as place:
        try:
            place.bind(f"\0stratos-chaos-{pid}-{kind}")
        except OSError:
            raise NoEffect(f"another fault holds the same limit of process {pid}") from None
        yield place


def _survives(pid: int, number: signal.Signals) -> bool:
    """Whether a process ignores or catches a signal."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    masks = {words[0]: int(words[1], 16) for words in lines if words and words[0] in ("SigIgn:", "SigCgt:")}
    return any(mask >> (number - 1) & 1 for mask in masks.values())


def _written(process: psutil.Process) -> dict[str, int]:
    """Files that a process has open for writing -> bytes."""
    paths = {Path(file.path) for file in process.open_files() if getattr(file, "mode", "r") != "r"}
    return {str(path): path.stat().st_size for path in paths if path.exists()}
