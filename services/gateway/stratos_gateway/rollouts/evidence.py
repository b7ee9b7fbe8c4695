"""Counts the requests of both revisions of a roll-out at this gateway, and publishes the totals.

A request counts at its end, for the step that runs then, once however many tokens or prompts it has.  One that failed
has a time beyond all steps: what breaks must not look fast.  One that its client left before the first token is
no evidence for the revision, only that it was no faster.  Left out are pins, adapters, cached answers, and what the
revision is not to blame for (``blame``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import RedisError

from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown
from stratos.core.adapter import BASE_MODEL
from stratos.core.ledger.pricing import Times
from stratos.core.ledger.steps import BEYOND, bucket_of
from stratos.store.counters.arm_counts import ArmCounts, ArmCountStore, CountName, p99_bucket_of
from stratos.store.models.alias_forms import pinned, split_name
from stratos.store.models.rollout_record import RolloutRecord
from stratos_gateway.answering.request import ClientRequest, Prepared, PreparedGeneration
from stratos_gateway.rollouts.blame import Ending, ending_of

_log = logging.getLogger(__name__)
FindRollout = Callable[[str], RolloutRecord | None]
"""The last roll-out of a name, as this gateway follows it."""


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
        rollout = self._rollout(prepared)
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

    def _rollout(self, prepared: Prepared) -> RolloutRecord | None:
        """That of the tag that was asked for, else that of the model: other aliases count beside its own name."""
        if not prepared.base_model:
            return None
        tagged = self._find(prepared.model) if split_name(prepared.model)[1] else None
        return tagged if tagged is not None and tagged.is_counted else self._find(prepared.base_model)

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
        ending, output = ending_of(request), request.output
        if ending is Ending.NOTHING:
            return None
        if ending is Ending.MISSED:
            return ArmCounts(num_missed=1)
        times = () if output is None else output.times(request.received_s)
        has_failed, ttft = ending is Ending.FAILED, _ttft_bucket(times, is_whole=request.error is None)
        if ending is Ending.LEFT and ttft is None:
            return ArmCounts(left=Counter([bucket_of(1e6 * max(0.0, self._clock.now() - request.received_s))]))
        counts = ArmCounts(num_requests=1, num_errors=int(has_failed))
        if ttft is not None or has_failed:
            counts.ttfts[BEYOND if ttft is None else ttft] += 1
        if ttft is not None and has_failed:
            counts.itls[BEYOND] += 1
        elif (itl := p99_bucket_of(_gaps(times))) is not None:
            counts.itls[itl] += 1
        return counts


def _ttft_bucket(times: Sequence[Times], *, is_whole: bool) -> int | None:
    """Step of the prompt that waited longest; ``None`` where one that is not whole has a prompt without a token."""
    known = [measured.ttft_us for measured in times if measured.ttft_us is not None]
    if not known or (len(known) < len(times) and not is_whole):
        return None
    return bucket_of(max(known))


def _gaps(times: Sequence[Times]) -> Counter[int]:
    found = Counter[int]()
    for measured in times:
        found.update(dict(measured.itls.steps))
    return found
