"""Workers of this machine for the models that records name: started when one comes, drained after it is gone.

    record  ──▶ start ──▶ its workers serve         a start that fails is reported, and tried again with the next record
    changed ──▶ start ──▶ idle? ──▶ drain           the new ones are there before the old ones leave
    gone    ──▶ idle? ──▶ drain                     first the requests that run end, which gateways send no new ones to
    back    ──▶ what has not left yet stays

Work on one record is done in order, and what goes wrong with one ends no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from stratos.common.errors import StratosError
from stratos.core.fleet import Fleet, FleetWorker
from stratos.store.models.model_record import ModelRecord
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind
from stratos.store.registry.catalogue import is_reference

IDLE_LOOKS = 4
"""Looks in a row that must find a worker idle: by then gateways and routers have heard of the removal."""
LONGEST_DRAIN_S = 600.0


class RecordFollower(Protocol):
    """``SnapshotFollower`` is one."""

    snapshot: FollowedSnapshot

    async def run(self) -> None:
        """Keep it up to date."""


class ModelWorkers(Protocol):
    """Processes for models; ``workers.LocalModelWorkers`` has those of this machine."""

    async def start_model(self, record: ModelRecord) -> Sequence[str]:
        """Start its workers; returns their names. Raises ``StratosError``."""
        ...

    async def begin_drain(self, name: str) -> None:
        """Let one leave."""

    async def fleet(self) -> Fleet:
        """Workers as a router sees them."""
        ...


@dataclass(frozen=True, slots=True)
class _Pool:
    """Workers that were started for a record."""

    record: ModelRecord
    names: Sequence[str]


class ModelPools:
    """Belongs to the event loop.

    Args:
        follower: keeps the records.
        workers: starts and ends processes.
        own: digests that the platform has workers for in any case.
        report: told what a person should know.
        look_s: between two looks at workers that are to leave.
    """

    def __init__(
        self,
        follower: RecordFollower,
        workers: ModelWorkers,
        own: Collection[str],
        report: Callable[[str], None],
        look_s: float = 0.5,
    ) -> None:
        self._follower = follower
        self._workers = workers
        self._own = own
        self._report = report
        self._look_s = look_s
        self._changed = asyncio.Event()
        self._known: dict[str, ModelRecord] = {}
        self._pools: dict[str, _Pool] = {}
        self._last: dict[str, asyncio.Task[None]] = {}
        """Work on each record that was begun last."""
        follower.snapshot.on_record(Kind.MODEL, lambda record: self._changed.set())

    async def run(self) -> None:
        """Root task: follow the records until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follower.run(), name="records")
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._settle(group)

    def _settle(self, group: asyncio.TaskGroup) -> None:
        wanted = self._wanted()
        for record_id in (self._known.keys() | self._pools.keys()) - wanted.keys():
            self._then(group, record_id, partial(self._end, record_id))
        for record_id, record in wanted.items():
            if not self._wants(record_id, record):
                self._then(group, record_id, partial(self._begin, record_id, record))
        self._known = wanted

    def _wants(self, record_id: str, record: ModelRecord) -> bool:
        """Workers for a record as ``record`` has it are wanted still."""
        known = self._known.get(record_id)
        return known is not None and _needs(known) == _needs(record)

    def _wanted(self) -> dict[str, ModelRecord]:
        found = ((record.id, record.value) for record in self._follower.snapshot.of_kind(Kind.MODEL))
        records = {record_id: value for record_id, value in found if isinstance(value, ModelRecord)}
        return {i: r for i, r in records.items() if r.digest not in self._own and _has_weights(r)}

    def _then(self, group: asyncio.TaskGroup, record_id: str, work: Callable[[], Awaitable[None]]) -> None:
        before = self._last.get(record_id)

        async def run() -> None:
            if before is not None:
                await asyncio.wait([before])
            try:
                await work()
            except Exception as error:  # a task's edge: one odd record ends the following of no other
                self._report(f"workers of {record_id.rpartition('/')[0]}: {error!r}"[:300])

        self._last[record_id] = group.create_task(run(), name=f"workers of {record_id}")

    async def _begin(self, record_id: str, record: ModelRecord) -> None:
        """Start the workers of a record, unless they are there, or another version of it came since."""
        before = self._pools.get(record_id)
        is_there = before is not None and _needs(before.record) == _needs(record)
        if is_there or not self._wants(record_id, record):
            return
        try:
            names = await self._workers.start_model(record)
        except Exception as error:
            why = error.message if isinstance(error, StratosError) else repr(error)[:200]
            self._report(f"model {record.name}: no workers: {why}")
            if self._wants(record_id, record):
                del self._known[record_id]
            return
        self._pools[record_id] = _Pool(record, names)
        if before is not None:
            await self._until_idle(before.names, lambda: False)
            await self._drain(before.names)

    async def _end(self, record_id: str) -> None:
        """Let the workers of a record leave once they are idle, unless it is there again by then."""
        pool = self._pools.get(record_id)
        if pool is None:
            return
        await self._until_idle(pool.names, lambda: record_id in self._known)
        if record_id not in self._known:
            del self._pools[record_id]
            await self._drain(pool.names)

    async def _drain(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                await self._workers.begin_drain(name)
            except StratosError as error:
                self._report(f"{name}: {error.message}")

    async def _until_idle(self, names: Sequence[str], may_stop: Callable[[], bool]) -> None:
        num_idle, loop = 0, asyncio.get_running_loop()
        until = loop.time() + LONGEST_DRAIN_S
        while names and num_idle < IDLE_LOOKS and loop.time() < until and not may_stop():
            await asyncio.sleep(self._look_s)
            try:
                busy = _busy(await self._workers.fleet(), names)
            except StratosError:
                continue
            num_idle = 0 if busy else num_idle + 1


def _busy(fleet: Fleet, names: Collection[str]) -> bool:
    return any(_is_busy(worker) for worker in fleet.workers if worker.ref.worker_id in names)


def _is_busy(worker: FleetWorker) -> bool:
    status = worker.status
    has_work = status is not None and (status.engine.num_running or status.engine.num_waiting or status.num_handoffs)
    return bool(worker.num_booked or has_work)


def _has_weights(record: ModelRecord) -> bool:
    """This machine can get at them."""
    return Path(record.source).is_absolute() or is_reference(record.source)


def _needs(record: ModelRecord) -> Mapping[str, object]:
    """Terms that workers are started with; others concern gateways alone."""
    names = ("source", "quantization", "speculation", "max_model_len")
    return {name: getattr(record, name) for name in names}
