"""Sleep of one worker, joined to what it has to wait for: streams, hand-offs, embedding calls, probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stratos.common.clock import Clock
from stratos.common.errors import Busy, Draining
from stratos.core.fleet import SleepState
from stratos.worker.drain_gate import DrainGate
from stratos.worker.health.prober import Prober
from stratos.worker.sleep.sleeper import Sleeper
from stratos.worker.status import StatusFeed
from stratos.worker.wiring import OpenWorker


def make_sleeper(
    opened: OpenWorker,
    gate: DrainGate,
    clock: Clock,
    looks: asyncio.Lock,
    prober: Callable[[], Prober | None],
    feed: StatusFeed,
    leave_s: float,
    *,
    is_spare: bool = False,
) -> Sleeper:
    """The sleeper of an open worker.

    Args:
        opened: the worker.
        gate: of it.
        clock: times waking.
        looks: as of ``Sleeper``.
        prober: of the worker, where it has one.
        feed: tells routers.
        leave_s: in which all that was given back has left; embedding calls get so long to end by themselves.
        is_spare: it stands by at first.
    """
    metrics = opened.context.metrics
    for state in SleepState:
        metrics.sleep_state.labels(state.value).set(state is SleepState.AWAKE)

    def shut(is_shut: bool) -> None:
        gate.is_asleep = is_shut
        opened.table.is_draining = gate.is_shut
        for state in SleepState:
            metrics.sleep_state.labels(state.value).set(state is sleeper.state)
        metrics.slept_bytes.set(sleeper.freed_bytes if sleeper.state is SleepState.ASLEEP else 0)
        feed.notify()

    async def settle(timeout_s: float) -> None:
        if await _is_idle_within(timeout_s, opened, gate):
            return
        opened.table.hand_back()
        if await _is_idle_within(leave_s, opened, gate):
            return
        opened.embedder.fail_all(Draining("this worker falls asleep; ask the router for a new placement"))
        if not await _is_idle_within(leave_s, opened, gate):
            raise Busy("work of this worker does not end", after_s=1.0)

    async def verify() -> None:
        if (found := prober()) is not None:
            await found.look_again()

    def count(outcome: str, seconds: float) -> None:
        metrics.sleeps.labels(outcome).inc()
        if outcome == "awake":
            metrics.wake_seconds.observe(seconds)

    sleeper = Sleeper(opened.context.engine, clock, looks, shut=shut, settle=settle, verify=verify, count=count)
    if is_spare:
        sleeper.stand_by()
    return sleeper


async def _is_idle_within(timeout_s: float, opened: OpenWorker, gate: DrainGate) -> bool:
    """Whether no stream, hand-off or embedding call is left by then."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await opened.table.wait_empty()
            await gate.wait_sources_done()
            return True
    return False
