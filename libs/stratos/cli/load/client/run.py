"""A whole run: warm-up, the load itself, and what it found."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from stratos.cli.load.client.health import watched_client
from stratos.cli.load.client.pacing import Pacer, RequestSender
from stratos.cli.load.measured import LoadResult, MeasuredRequest
from stratos.cli.load.workload.arrivals import ClosedLoop
from stratos.cli.load.workload.sessions import PlannedSession

WARM_UP_STREAMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Sessions of a run and how they are sent."""

    sessions: Iterator[PlannedSession]
    closed: ClosedLoop | None = None
    """``None``: an open loop at the sessions' own times."""
    duration_s: float = math.inf
    """No session begins later; those that have begun are waited for."""
    warm_up: Iterable[PlannedSession] = ()
    """Sent before, by a few streams, and not counted."""


@dataclass(slots=True)
class LoadProgress:
    """Counts while a run goes on."""

    num_sent: int = 0
    num_completed: int = 0
    num_failed: int = 0
    num_output_tokens: int = 0

    def sent(self) -> None:
        """One more request."""
        self.num_sent += 1

    def measured(self, request: MeasuredRequest) -> None:
        """One more answer."""
        if request.is_completed:
            self.num_completed += 1
            self.num_output_tokens += request.num_output_tokens
        else:
            self.num_failed += 1


async def run_plan(
    plan: RunPlan, sender: RequestSender, progress: LoadProgress | None = None, now: Callable[[], float] | None = None
) -> LoadResult:
    """Send everything and wait for the last answer.

    Args:
        plan: what is sent.
        sender: of requests.
        progress: is counted up.
        now: seconds of the clock that the event loop's timers follow; default: the loop's.
    """
    now = now or asyncio.get_running_loop().time
    progress = progress or LoadProgress()
    result = LoadResult()

    def measured(request: MeasuredRequest) -> None:
        result.requests.append(request)
        progress.measured(request)

    await Pacer(sender, now, lambda: None, lambda request: None).closed_loop(
        iter(plan.warm_up), WARM_UP_STREAMS, math.inf
    )
    pacer = Pacer(sender, now, progress.sent, measured)
    began_s = now()
    async with watched_client(now) as result.health:
        if plan.closed is not None:
            await pacer.closed_loop(plan.sessions, plan.closed.num_streams, began_s + plan.duration_s)
        else:
            await pacer.open_loop(itertools.takewhile(lambda one: one.at_s < plan.duration_s, plan.sessions))
    result.duration_s = now() - began_s
    return result
