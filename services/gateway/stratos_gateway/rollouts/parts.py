"""Roll-outs of one gateway, put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.asyncio import Redis

from stratos.common.clock import Clock
from stratos.common.ids import new_incarnation
from stratos.store.counters.arm_counts import ArmCountStore
from stratos.store.counters.guard import StoreId
from stratos.store.counters.serving import ServingStore
from stratos.store.models.rollout_record import RolloutRecord
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, Record, value_as
from stratos.store.records.record_store import RecordStore
from stratos.store.records.settings import RecordStoreConfig
from stratos_gateway.models.aliases import AliasChoice, succeeding
from stratos_gateway.models.live_revisions import LiveWorkers
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.shelf import ModelArrivals
from stratos_gateway.rollouts.controller import RolloutController, workers_of
from stratos_gateway.rollouts.drift import Ask, DriftWatch
from stratos_gateway.rollouts.evidence import RolloutEvidence
from stratos_gateway.rollouts.routes import RolloutAccess
from stratos_gateway.rollouts.serving import tell_serving
from stratos_gateway.rollouts.settings import RolloutsConfig


class SnapshotRollouts:
    """Roll-outs of a followed snapshot; other threads may read them.

    Args:
        snapshot: of the process.
    """

    def __init__(self, snapshot: FollowedSnapshot) -> None:
        self._found: dict[str, RolloutRecord] = {}
        for record in snapshot.of_kind(Kind.ROLLOUT):  # of a restored copy
            self._note(record)
        snapshot.on_record(Kind.ROLLOUT, self._note)

    def find(self, model: str) -> RolloutRecord | None:
        """The last one of a model; ``None`` where there is none."""
        return self._found.get(model)

    def all(self) -> Sequence[RolloutRecord]:
        """The last one of every model."""
        return list(self._found.values())

    def unfinished(self) -> list[str]:
        """Models of which something is left to do."""
        return [rollout.model for rollout in self.all() if rollout.is_unfinished]

    def _note(self, record: Record) -> None:
        if (rollout := value_as(RolloutRecord, record)) is not None:
            self._found[record.id] = rollout
        else:
            self._found.pop(record.id, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStores:
    """Where records and counts are."""

    redis: Redis
    records: RecordStore
    config: RecordStoreConfig
    store_id: StoreId
    serving: ServingStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Belongs to the event loop."""

    access: RolloutAccess
    evidence: RolloutEvidence
    watch_drift: Callable[[Ask], Coroutine[Any, Any, None]]
    """Root task that measures drift, by asking workers."""
    tasks: Mapping[str, Callable[[], Coroutine[Any, Any, Any]]]
    """Root tasks by name."""

    @classmethod
    def open(
        cls,
        stores: RolloutStores,
        rollouts: SnapshotRollouts,
        models: ModelSet,
        live_workers: Callable[[], Awaitable[LiveWorkers]],
        choice: AliasChoice,
        config: RolloutsConfig,
        clock: Clock,
        arrivals: ModelArrivals,
    ) -> Rollouts:
        """Put them together; nothing is asked yet."""
        counts = ArmCountStore(stores.redis, stores.config, new_incarnation(), stores.store_id)
        evidence = RolloutEvidence(rollouts.find, counts, clock, config.publish_s)
        controller = RolloutController(
            stores.records,
            counts,
            workers_of(models, live_workers),
            stores.store_id,
            stores.serving.lacking,
            partial(succeeding, choice=choice, models=models),
        )
        drift = DriftWatch(stores.records, models, stores.store_id, config.poll_s)
        return cls(
            access=RolloutAccess(controller=controller, models=models, arrivals=arrivals),
            evidence=evidence,
            watch_drift=partial(drift.run, rollouts.all),
            tasks={
                "rollouts": partial(controller.run, rollouts.unfinished, config.poll_s),
                "rollout-counts": evidence.run,
                "serving": partial(tell_serving, stores.serving, models, config.poll_s),
            },
        )
