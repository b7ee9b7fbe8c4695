"""Moves roll-outs on. Every gateway has one, and it does not matter which of them acts, or where it dies.

    record says a step ──▶ weights are written (alias) ──▶ record says so (is_applied) ──▶ requests are counted
          ▲                                                                                        │
          └──────────────────────── next step, back, or done ◀── judged, record is written ◀───────┘

Nothing is kept here: each turn reads the store and does the one thing that is left to do.  What keeps two of them from
acting at once are versions, not time: each write replaces the version that was read, or does nothing.  The alias is
read before the record that says its weights, so weights of a step that is over replace none that came later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace

from redis.exceptions import RedisError

from stratos.common.errors import StratosError
from stratos.store.counters.arm_counts import ArmCounts, ArmCountStore, CountName
from stratos.store.counters.guard import StoreId, known
from stratos.store.models.alias_forms import alias_to_json
from stratos.store.models.alias_record import AliasRecord
from stratos.store.models.rollout_forms import rollout_to_json
from stratos.store.models.rollout_record import RolloutPhase, RolloutRecord
from stratos.store.records.record import Kind, Record, value_as
from stratos.store.records.record_store import RecordStore
from stratos.store.records.writer import RecordWriter
from stratos_gateway.models.live_revisions import LiveWorkers, can_take
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.rollouts.judge import applied, following, too_far

_log = logging.getLogger(__name__)
ACTIONS = {
    RolloutPhase.RUNNING: "rollout.step",
    RolloutPhase.ROLLED_BACK: "rollout.back",
    RolloutPhase.DONE: "rollout.done",
}
"""What a change of the controller is called in the audit log."""


class RolloutController:
    """Belongs to the event loop.

    Args:
        records: where roll-outs and aliases are stored.
        counts: requests of all gateways.
        has_workers: asks a router whether a revision has live workers; false where none answers.
        store_id: of the store that takes the changes.
        lacking: living gateways that serve one of some digests, but not each of others: see ``ServingStore``.
        succeeds: adds to an alias what its requests go on with until its targets have workers.
    """

    def __init__(
        self,
        records: RecordStore,
        counts: ArmCountStore,
        has_workers: Callable[[str], Awaitable[bool]],
        store_id: StoreId,
        lacking: Callable[[Collection[str], Collection[str]], Awaitable[Sequence[str]]],
        succeeds: Callable[[AliasRecord, Record | None], AliasRecord],
    ) -> None:
        self._records = records
        self._counts = counts
        self._has_workers = has_workers
        self._store_id = store_id
        self._lacking = lacking
        self._succeeds = succeeds

    async def run(self, models: Callable[[], Iterable[str]], poll_s: float) -> None:
        """Root task: look at the roll-outs of some models again and again."""
        while True:
            for model in models():
                try:
                    await self.turn(model)
                except (StratosError, RedisError) as error:
                    _log.debug("the roll-out of %s is looked at later: %s", model, error)
            await asyncio.sleep(poll_s)

    async def turn(self, model: str) -> bool:
        """Do what is left to do for a model's roll-out; false where that was nothing. Raises ``DependencyDown``."""
        writer = RecordWriter(self._records, actor="gateway", store_id=known(self._store_id))
        alias = await writer.current(Kind.ALIAS, model)
        record, rollout = await read_rollout(writer, model)
        if rollout is None or not rollout.is_unfinished:
            return False
        now_us = await self._records.now_us()
        if (left := without_weights(rollout, alias, now_us)) is not None:
            action = "rollout.applied" if left.phase is rollout.phase else "rollout.abort"
            return await replace_seen(writer, Kind.ROLLOUT, model, action, record, rollout_to_json(left))
        if rollout.lacks_drift:
            return False  # no client is on a revision of which nothing is known
        if (back := too_far(rollout, now_us)) is not None:
            return await self._moved(writer, record, back)
        if (wanted := weights(rollout, alias)) is not None:
            if not rollout.is_applied and rollout.is_active and (_is_kept(rollout) or await self.lacking(rollout)):
                return False
            value = alias_to_json(self._succeeds(wanted, alias))
            return await replace_seen(writer, Kind.ALIAS, model, "alias.rollout", alias, value)
        if not rollout.is_applied:
            made = applied(rollout, now_us) if rollout.is_active else replace(rollout, is_applied=True)
            is_done = await replace_seen(writer, Kind.ROLLOUT, model, "rollout.applied", record, rollout_to_json(made))
            if is_done and made.epoch != rollout.epoch:
                await self._counts.forget(CountName.of(rollout))
            return is_done
        made_next = await self._next(rollout, now_us)
        return made_next is not None and await self._moved(writer, record, made_next)

    async def _moved(self, writer: RecordWriter, record: Record | None, made: RolloutRecord) -> bool:
        """Write what was judged."""
        _log.info("roll-out of %s: %s at %d %%: %s", made.model, made.phase, made.percent, made.reason)
        action = ACTIONS[made.phase]
        return await replace_seen(writer, Kind.ROLLOUT, made.model, action, record, rollout_to_json(made))

    async def _next(self, rollout: RolloutRecord, now_us: int) -> RolloutRecord | None:
        """The roll-out as it is to be written next; back it goes at any time, on once every gateway can follow."""
        if not rollout.is_counted:
            return None
        counts = await self._counts.sums(CountName.of(rollout))
        has_workers = rollout.is_held(now_us) and await self._has_workers(rollout.new)
        made = following(rollout, counts, now_us, has_workers=has_workers)
        if made is None or made.phase is RolloutPhase.ROLLED_BACK:
            return made
        return None if await self.lacking(rollout) else made

    async def lacking(self, rollout: RolloutRecord) -> Sequence[str]:
        """Living gateways that do not serve the new revision, or do not say so; raises ``DependencyDown``."""
        return await self._lacking([rollout.new], [rollout.old])

    async def has_old_workers(self, rollout: RolloutRecord) -> bool:
        """Whether the revision that it came from has live workers; false where no router answers."""
        return await self._has_workers(rollout.old)

    async def counted(self, rollout: RolloutRecord) -> dict[str, ArmCounts]:
        """Requests of both revisions at all gateways, of the step that runs; raises ``DependencyDown``."""
        return await self._counts.sums(CountName.of(rollout))


async def read_rollout(writer: RecordWriter, model: str) -> tuple[Record | None, RolloutRecord | None]:
    """The record of a model's roll-out and its value; none of both where there is none."""
    record = await writer.current(Kind.ROLLOUT, model)
    return record, value_as(RolloutRecord, record)


def weights(rollout: RolloutRecord, alias: Record | None) -> AliasRecord | None:
    """The alias that a roll-out wants; ``None`` where it is there.

    Args:
        rollout: what it says now.
        alias: the record of the model's own name.
    """
    known_alias = value_as(AliasRecord, alias)
    if known_alias is not None and (known_alias.targets, known_alias.sticky) == (rollout.targets, rollout.sticky):
        return None
    return AliasRecord(
        name=rollout.model,
        targets=rollout.targets,
        sticky=rollout.sticky,
        created_unix_s=rollout.since_us // 1_000_000,
    )


def without_weights(rollout: RolloutRecord, alias: Record | None, now_us: int) -> RolloutRecord | None:
    """The roll-out where what is left to do is to note which weights there are; ``None`` where it is not.

    Args:
        rollout: what it says now.
        alias: the record of the model's own name.
        now_us: by the store's clock.

    Returns:
        A pause keeps the weights that are there: of the step before, where those of this one were not written.  An
        alias that another hand has changed since the start, before any weights were written, is left to that hand.
    """
    if rollout.is_applied or weights(rollout, alias) is None:
        return None
    step = _written_step(rollout, alias)
    if rollout.phase is RolloutPhase.PAUSED:
        return None if step is None else replace(rollout, step=step, is_applied=True)
    version, found = 0 if alias is None else alias.version, value_as(AliasRecord, alias)
    is_old = found is not None and found.targets == rollout.targets_at(0)  # only what it moved from was dropped
    if rollout.epoch or step is not None or is_old or rollout.alias_version in (None, version):
        return None
    if not rollout.is_active:
        return replace(rollout, is_applied=True)
    reason = "the model's alias was changed by hand as the roll-out began: it was left as it is"
    return replace(rollout, phase=RolloutPhase.ABORTED, is_applied=True, since_us=now_us, reason=reason)


def _written_step(rollout: RolloutRecord, alias: Record | None) -> int | None:
    """The step of whose weights an alias is; ``None`` for an alias of other targets."""
    found = value_as(AliasRecord, alias)
    targets = None if found is None else found.targets
    return next((n for n, percent in enumerate(rollout.steps) if rollout.targets_at(percent) == targets), None)


def _is_kept(rollout: RolloutRecord) -> bool:
    """A pause writes no weights."""
    return rollout.phase is RolloutPhase.PAUSED


def workers_of(
    models: ModelSet, live_workers: Callable[[], Awaitable[LiveWorkers]]
) -> Callable[[str], Awaitable[bool]]:
    """Says whether a revision has live workers that can take a request; false where no router answers."""

    async def has_workers(digest: str) -> bool:
        if (model := models.of_digest(digest)) is None:
            return False
        try:
            return can_take(model, await live_workers())
        except StratosError:
            return False

    return has_workers


async def replace_seen(
    writer: RecordWriter, kind: Kind, record_id: str, action: str, seen: Record | None, value: dict[str, object]
) -> bool:
    """Write a record in the place of the version that was read; false where another writer was first."""
    version = 0 if seen is None else seen.version

    def edit(old: Record | None) -> dict[str, object] | None:
        return value if (0 if old is None else old.version) == version else None

    return await writer.change(kind, record_id, action, edit)
