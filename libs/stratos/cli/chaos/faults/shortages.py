"""Faults of a process that gets no more of something: room on disk, memory.

Both are limits of the kernel for that one process (``prlimit``), so nothing else on the machine suffers.  The proof
is that the limit held, and what the process missed: threads for connections that came under it, and lines of its
log, which it counts itself.
"""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TypeVar

import psutil

from stratos.cli.chaos.faults.contract import POLL_S, NoEffect, Proof, Strike, only_one
from stratos.cli.chaos.faults.sockets import tcp_sockets
from stratos.cli.chaos.faults.waking import undone_in_the_end
from stratos.common.errors import StratosError

Measured = TypeVar("Measured")
LINES_METRIC = "stratos_log_lines_lost_total"
COUNTED_S = 0.5
"""Within this time a process has counted what it lost."""
NUM_HELD, HELD_S = 24, 0.5
"""Connections at once: more than a process keeps stacks of ended threads for. The last may be closed so much later."""
TAKEN_S = 60.0
"""Within this time all of them are taken, or closed."""
SPARE_BYTES = 1 << 20
"""Address space that a process short of memory may still take."""
_SET_BACK = """
import resource
pid, kind, limit, soft, hard = map(int, sys.argv[1:])
for one in family(pid):
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
    sizes, lost_before = _written(process), await _num_lost_lines(strike)
    later = await _hold_limit(strike, process, resource.RLIMIT_FSIZE, 0, lambda: _written(process))
    num_lost = None
    if lost_before is not None:
        await asyncio.sleep(COUNTED_S)
        num_lost = await _num_lost_lines(strike)
    grown = {path for path, size in later.items() if size > sizes.get(path, size)}
    if grown:
        raise NoEffect(f"files of process {process.pid} grew: {', '.join(sorted(grown))}")
    proof = {"pid": process.pid, "full_s": strike.lasting_s, "files": len(sizes), "grown": 0}
    return proof | {"log_lines_lost": None if num_lost is None or lost_before is None else num_lost - lost_before}


async def short_memory(strike: Strike) -> Proof:
    """The process can map next to nothing more: allocations beyond what it has fail."""
    process = await strike.process()
    limit, num_refused = process.memory_info().vms + SPARE_BYTES, list[int | None]()

    async def knock() -> None:
        num_refused.append(await _num_refused(strike))

    def address_space() -> int:
        return int(process.memory_info().vms)

    size = await _hold_limit(strike, process, resource.RLIMIT_AS, limit, address_space, beside=knock)
    if size > limit:
        raise NoEffect(f"process {process.pid} grew to {size} bytes beyond its limit of {limit}")
    if num_refused == [0]:
        raise NoEffect(f"process {process.pid} had memory for {NUM_HELD} more threads under its limit")
    proof = {"pid": process.pid, "short_s": strike.lasting_s, "address_space": size, "limit": limit}
    return proof | {"threads_refused": num_refused[0]}


async def _num_refused(strike: Strike) -> int | None:
    """Connections that a process closed at once, for want of a thread, of so many that it was to hold; none answers.

    ``None`` for a process that has no thread for each of its probes.

    Raises:
        NoEffect: it does not take them in time.
    """
    try:
        host, _, port = (await strike.place.metrics_address(strike.target)).rpartition(":")
    except StratosError:
        return None
    async with AsyncExitStack() as stack:
        closed: dict[int, asyncio.Task[None]] = {}
        try:
            async with asyncio.timeout(TAKEN_S):
                for _ in range(NUM_HELD):
                    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
                    stack.callback(writer.close)
                    closed[writer.get_extra_info("sockname")[1]] = task = asyncio.create_task(_end_of(reader))
                    stack.callback(task.cancel)
                await _all_taken(closed, int(port))
        except TimeoutError:
            raise NoEffect(f"{strike.target} did not take, or close, {NUM_HELD} connections in {TAKEN_S:g} s") from None
        await asyncio.wait(closed.values(), timeout=HELD_S)
        return sum(task.done() for task in closed.values())


async def _end_of(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):  # a reset
        await reader.read(1)


async def _all_taken(closed: Mapping[int, asyncio.Task[None]], port: int) -> None:
    """Wait until no connection waits at a port, where it has no inode yet; those that are closed are known by us."""
    while True:
        waiting = {own for own, task in closed.items() if not task.done()}
        if waiting <= {one.remote_port for one in tcp_sockets().values() if one.local_port == port}:
            return
        await asyncio.sleep(POLL_S)


async def _num_lost_lines(strike: Strike) -> int | None:
    """Lines of its log that the process could not write so far; ``None`` where it does not say."""
    try:
        return int(await strike.place.metric(strike.target, LINES_METRIC))
    except StratosError:
        return None


async def _nothing() -> None:
    return


async def _hold_limit(
    strike: Strike,
    process: psutil.Process,
    kind: int,
    limit: int,
    measured: Callable[[], Measured],
    *,
    beside: Callable[[], Awaitable[None]] = _nothing,
) -> Measured:
    """Returns what is measured at the end, while the limit still holds."""
    with only_one(process.pid, kind) as place:
        soft, hard = resource.prlimit(process.pid, kind)
        by_hand = f"limit {kind} of process {process.pid} must be {soft}; set it by prlimit, or start the process again"
        with undone_in_the_end(_SET_BACK, process.pid, kind, limit, soft, hard, by_hand=by_hand) as hold:
            hold(place.fileno())
            resource.prlimit(process.pid, kind, (limit, hard))
            strike.in_effect.set()
            await asyncio.gather(asyncio.sleep(strike.lasting_s), beside())
            result = measured()
            if process.status() == psutil.STATUS_ZOMBIE or resource.prlimit(process.pid, kind)[0] != limit:
                raise NoEffect(f"process {process.pid} did not live under its limit to the end")
            return result


def _survives(pid: int, number: signal.Signals) -> bool:
    """Whether a process ignores or catches a signal."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    masks = {words[0]: int(words[1], 16) for words in lines if words and words[0] in ("SigIgn:", "SigCgt:")}
    return any(mask >> (number - 1) & 1 for mask in masks.values())


def _written(process: psutil.Process) -> dict[str, int]:
    """Files that a process has open for writing -> bytes."""
    paths = {Path(file.path) for file in process.open_files() if getattr(file, "mode", "r") != "r"}
    return {str(path): path.stat().st_size for path in paths if path.exists()}
