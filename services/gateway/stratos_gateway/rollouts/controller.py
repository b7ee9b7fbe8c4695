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
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from redis.exceptions import RedisError

from stratos.common.errors import StratosError
from stratos.store.counters.arm_counts import ArmCounts, ArmCountStore, CountName
from stratos.store.counters.guard import StoreId, known
from stratos.store.models.alias_forms import alias_to_json
from stratos.store.models.alias_record import WHOLE, AliasRecord, AliasTarget
from stratos.store.models.rollout_forms import rollout_to_json
from stratos.store.models.rollout_record import RolloutPhase, RolloutRecord
from stratos.store.records.record import Kind, Record
from stratos.store.records.record_store import RecordStore
from stratos.store.records.writer import RecordWriter
from stratos_gateway.models.live_revisions import LiveWorkers, can_take
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.rollouts.judge import applied, following

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
    """

    def __init__(
        self,
        records: RecordStore,
        counts: ArmCountStore,
        has_workers: Callable[[str], Awaitable[bool]],
        store_id: StoreId,
    ) -> None:
        self._records = records
        self._counts = counts
        self._has_workers = has_workers
        self._store_id = store_id

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
        if rollout is None or (rollout.is_applied and not rollout.is_active):
            return False
        if (wanted := weights(rollout, alias)) is not None:
            return await _replace(writer, Kind.ALIAS, model, "alias.rollout", alias, alias_to_json(wanted))
        now_us = await self._records.now_us()
        if not rollout.is_applied:
            made = applied(rollout, now_us) if rollout.is_active else replace(rollout, is_applied=True)
            return await _replace(writer, Kind.ROLLOUT, model, "rollout.applied", record, rollout_to_json(made))
        if not rollout.is_counted:
            return False
        counts = await self._counts.sums(CountName.of(rollout))
        made_next = following(rollout, counts, now_us, has_workers=await self._has_workers(rollout.new))
        if made_next is None:
            return False
        _log.info("roll-out of %s: %s at %d %%: %s", model, made_next.phase, made_next.percent, made_next.reason)
        action = ACTIONS[made_next.phase]
        return await _replace(writer, Kind.ROLLOUT, model, action, record, rollout_to_json(made_next))

    async def counted(self, rollout: RolloutRecord) -> dict[str, ArmCounts]:
        """Requests of both revisions at all gateways, of the step that runs; raises ``DependencyDown``."""
        return await self._counts.sums(CountName.of(rollout))


async def read_rollout(writer: RecordWriter, model: str) -> tuple[Record | None, RolloutRecord | None]:
    """The record of a model's roll-out and its value; none of both where there is none."""
    record = await writer.current(Kind.ROLLOUT, model)
    value = None if record is None else record.value
    return record, value if isinstance(value, RolloutRecord) else None


def weights(rollout: RolloutRecord, alias: Record | None) -> AliasRecord | None:
    """The alias that a roll-out wants; ``None`` where it is there.

    Args:
        rollout: what it says now.
        alias: the record of the model's own name.

    Returns:
        Where the new revision gets all, the old one is what was before: while the new one has no workers it goes on.
    """
    known_alias = alias.value if alias is not None and isinstance(alias.value, AliasRecord) else None
    if known_alias is not None and (known_alias.targets, known_alias.sticky) == (rollout.targets, rollout.sticky):
        return None
    is_alone = rollout.percent == WHOLE
    before = (AliasTarget(model=rollout.model, digest=rollout.old),) if is_alone else ()
    return AliasRecord(
        name=rollout.model,
        targets=rollout.targets,
        before=before,
        sticky=rollout.sticky,
        created_unix_s=rollout.since_us // 1_000_000,
    )


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


async def _replace(
    writer: RecordWriter, kind: Kind, record_id: str, action: str, seen: Record | None, value: dict[str, object]
) -> bool:
    """Write a record in the place of the version that was read; false where another writer was first."""
    version = 0 if seen is None else seen.version

    def edit(old: Record | None) -> dict[str, object] | None:
        return value if (0 if old is None else old.version) == version else None

    return await writer.change(kind, record_id, action, edit)
