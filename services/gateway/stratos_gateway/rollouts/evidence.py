"""Counts the requests of both revisions of a roll-out at this gateway, and publishes the totals.

A request counts at its end, for the step that runs then.  One that the client left before its first token counts with
the time that it waited, and one that the platform failed with a time beyond all steps: what hangs or breaks must not
look fast.  Left out are pins, adapters, answers that no worker of the revision gave, and errors of clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown, StratosError
from stratos.core.adapter import BASE_MODEL
from stratos.core.ledger.pricing import Times
from stratos.core.ledger.steps import BEYOND, bucket_of
from stratos.store.counters.arm_counts import ArmCounts, ArmCountStore, CountName
from stratos.store.models.alias_forms import pinned
from stratos.store.models.rollout_record import RolloutRecord
from stratos_gateway.answering.draft import is_platform_failure
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration

_log = logging.getLogger(__name__)
FindRollout = Callable[[str], RolloutRecord | None]
"""The last roll-out of a model, as this gateway follows it."""


class RolloutEvidence:
    """Belongs to the event loop.

    Args:
        find: roll-outs by the name of their model.
        store: where totals go.
        clock: monotonic; that of requests.
        publish_s: between two writes.
    """

    def __init__(self, find: FindRollout, store: ArmCountStore, clock: Clock, publish_s: float) -> None:
        self._find = find
        self._store = store
        self._clock = clock
        self._publish_s = publish_s
        self._counts: dict[CountName, dict[str, ArmCounts]] = {}
        self._unwritten: set[CountName] = set()

    def note(self, request: ClientRequest[Any]) -> None:
        """A request has ended, in whatever way."""
        prepared = request.prepared
        rollout = self._find(prepared.base_model) if prepared.base_model else None
        if rollout is None or not rollout.is_counted or prepared.model_digest not in (rollout.old, rollout.new):
            return
        if pinned(prepared.model) is not None or request.followed is not None:
            return
        if isinstance(prepared, PreparedGeneration) and prepared.identity.adapter != BASE_MODEL:
            return
        if (counted := self._counted(request)) is not None:
            name = CountName.of(rollout)
            arms = self._counts.setdefault(name, {})
            arms.setdefault(prepared.model_digest, ArmCounts()).add(counted)
            self._unwritten.add(name)

    async def run(self) -> None:
        """Root task."""
        while True:
            await asyncio.sleep(self._publish_s)
            try:
                await self.publish()
            except (DependencyDown, RedisError) as error:
                _log.debug("counts of a roll-out are written later: %s", error)

    async def publish(self) -> None:
        """Write totals that have changed, and forget those of steps that are over; raises ``DependencyDown``."""
        for name in list(self._counts):
            if name in self._unwritten:
                self._unwritten.discard(name)
                try:
                    await self._store.put(name, self._counts[name])
                except BaseException:
                    self._unwritten.add(name)
                    raise
            rollout = self._find(name.model)
            if name not in self._unwritten and (rollout is None or CountName.of(rollout) != name):
                del self._counts[name]

    def _counted(self, request: ClientRequest[Any]) -> ArmCounts | None:
        """One request; ``None`` for one that says nothing of the revision."""
        output, error = request.output, request.error
        has_failed = is_platform_failure(error)
        if not has_failed and isinstance(error, StratosError):
            return None
        if output is not None and output.sections().get("source") != "workers":
            return None
        waited_us = 1e6 * max(0.0, self._clock.now() - request.received_s)
        counts = ArmCounts(num_requests=1, num_errors=int(has_failed))
        times = () if output is None else output.times(request.received_s)
        for measured in times or (Times(),):
            _add_times(counts, measured, waited_us, has_failed=has_failed, is_whole=error is None)
        return counts


def _add_times(counts: ArmCounts, times: Times, waited_us: float, *, has_failed: bool, is_whole: bool) -> None:
    if times.ttft_us is not None:
        counts.ttfts[bucket_of(times.ttft_us)] += 1
        counts.itls.update(dict(times.itls.with_endless().steps if has_failed else times.itls.steps))
    elif has_failed:
        counts.ttfts[BEYOND] += 1
    elif not is_whole:
        counts.ttfts[bucket_of(waited_us)] += 1
