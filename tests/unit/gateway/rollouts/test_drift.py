"""Drift between revisions: measured once for each step, whoever is first, and of what is no number the worst."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stratos.common.errors import BadRequest, DependencyDown, Internal, WorkerLost
from stratos.store.models.rollout_forms import rollout_to_json
from stratos.store.models.rollout_record import RolloutGates, RolloutPhase, RolloutRecord
from stratos.store.records.record import Kind, make_body, parse_record, version_of
from stratos.store.records.record_store import VersionConflict
from stratos_gateway.rollouts.drift import MAX_TOKENS, MOST_NATS, DriftWatch, pinned_ids
from tests.support.waiting import eventually

OLD, NEW = "a" * 64, "b" * 64
RUNNING = RolloutRecord(model="base", old=OLD, new=NEW, steps=(10, 100), hold_s=10, gates=RolloutGates(drift=0.1))


class Store:
    """The record of one roll-out."""

    def __init__(self, rollout: RolloutRecord) -> None:
        self.version, self.actions = 1, list[str]()
        self.put(rollout)

    @property
    def rollout(self) -> RolloutRecord:
        value = parse_record(Kind.ROLLOUT, "base", self.text).value
        assert isinstance(value, RolloutRecord)
        return value

    def put(self, rollout: RolloutRecord) -> None:
        self.version += 1
        self.text = f"{self.version} {make_body(rollout_to_json(rollout))}"

    async def text_of(self, kind: Kind, record_id: str) -> str:
        return self.text

    async def write(self, kind: Kind, record_id: str, body: str, *, seen: int, **more: Any) -> int:
        if version_of(self.text) != seen:
            raise VersionConflict
        self.version += 1
        self.text = f"{self.version} {body}"
        self.actions.append(more["audit"].action)
        return self.version


def model(digest: str, *, max_input_tokens: int = 1000, **facts: Any) -> Any:
    tokenizer = SimpleNamespace(encode_plain=lambda text: [*text.encode(), *facts.get("more", ())])
    base = SimpleNamespace(digest=digest, can_generate=facts.get("can_generate", True))
    return SimpleNamespace(base=base, tokenizer=tokenizer, max_input_tokens=max_input_tokens)


def watch(store: Store) -> DriftWatch:
    models = SimpleNamespace(of_digest={OLD: model(OLD), NEW: model(NEW)}.get)
    return DriftWatch(store, models, lambda: "", 0.001)  # type: ignore[arg-type]


async def ask(asked: Any, ids: Sequence[int]) -> Sequence[float]:
    """The new revision is 0.25 off at every second token."""
    off = 0.25 if asked.base.digest == NEW else 0.0
    return [-1.0 - off * (place % 2) for place in range(len(ids) - 1)]


async def test_it_is_measured_once_before_any_weights_of_a_roll_out_that_has_the_gate() -> None:
    store = Store(RUNNING)
    assert await watch(store).look("base", ask)
    found = store.rollout.drift
    assert found is not None
    assert (found.largest, found.num_tokens) == (0.25, MAX_TOKENS - 1)
    assert found.mean == pytest.approx(0.125, rel=0.01)
    assert not await watch(store).look("base", ask)
    store.put(replace(store.rollout, is_applied=True, epoch=4, step=1))
    assert not await watch(store).look("base", ask)
    assert store.actions == ["rollout.drift"]
    for other in (
        replace(RUNNING, gates=RolloutGates(errors=1)),
        replace(RUNNING, phase=RolloutPhase.PAUSED),
    ):
        assert not await watch(Store(other)).look("base", ask)


async def test_what_changes_while_it_is_measured_stays_and_who_cannot_be_asked_is_asked_again() -> None:
    store = Store(RUNNING)

    async def aborted_meanwhile(asked: Any, ids: Sequence[int]) -> Sequence[float]:
        store.put(replace(RUNNING, phase=RolloutPhase.ABORTED))
        return await ask(asked, ids)

    async def lost(asked: Any, ids: Sequence[int]) -> Sequence[float]:
        raise WorkerLost("it is gone")

    with pytest.raises(WorkerLost):
        await watch(store).look("base", lost)
    assert not await watch(store).look("base", aborted_meanwhile)
    assert (store.rollout.phase, store.rollout.drift) == (RolloutPhase.ABORTED, None)


@pytest.mark.parametrize(("old", "new", "off"), [
    (-1.0, math.nan, MOST_NATS), (-1.0, -math.inf, MOST_NATS), (-math.inf, -math.inf, 0.0), (-1e9, 0.0, MOST_NATS),
])  # fmt: skip
async def test_what_is_no_number_counts_as_the_worst(old: float, new: float, off: float) -> None:
    async def says(asked: Any, ids: Sequence[int]) -> Sequence[float]:
        return [*[-1.0] * (len(ids) - 2), old if asked.base.digest == OLD else new]

    store = Store(RUNNING)
    assert await watch(store).look("base", says)
    found = store.rollout.drift
    assert found is not None
    assert found.largest == off
    is_lost = math.isfinite(old) and not math.isfinite(new)
    assert found.mean == pytest.approx(MOST_NATS if is_lost else off / found.num_tokens), "one is not diluted"


@pytest.mark.parametrize("given", [[], [-1.0], [-1.0] * 1000, "no list at all"])
async def test_a_malformed_answer_is_measured_again_and_ends_no_gateway_and_no_other_measurement(given: Any) -> None:
    store, is_mended = Store(RUNNING), asyncio.Event()

    async def malformed(asked: Any, ids: Sequence[int]) -> Sequence[float]:
        if is_mended.is_set() or asked.base.digest == OLD:
            return await ask(asked, ids)
        if not isinstance(given, list):
            raise ValueError(given)
        return given

    with pytest.raises(ValueError if given == "no list at all" else Internal):
        await watch(store).look("base", malformed)
    work = asyncio.create_task(watch(store).run(lambda: [store.rollout], malformed))
    await asyncio.wait({work}, timeout=0.05)
    assert (work.done(), store.rollout.drift) == (False, None)
    is_mended.set()
    await eventually(lambda: store.rollout.drift is not None, "the next look")
    work.cancel()


async def test_a_roll_out_whose_workers_hang_holds_up_no_other_one() -> None:
    hanging, store = replace(RUNNING, model="hangs"), Store(RUNNING)
    hung, looks = asyncio.Event(), list[str]()

    class Watch(DriftWatch):
        async def look(self, model: str, ask: Any) -> bool:
            looks.append(model)
            if model == "hangs":
                await hung.wait()
            return await super().look(model, ask)

    models = SimpleNamespace(of_digest={OLD: model(OLD), NEW: model(NEW)}.get)
    found = Watch(store, models, lambda: "", 0.001)  # type: ignore[arg-type]
    work = asyncio.create_task(found.run(lambda: [hanging, store.rollout], ask))
    await eventually(lambda: store.rollout.drift is not None, "the other one is measured")
    work.cancel()
    assert looks.count("hangs") == 1, "it is not asked twice at once"


async def test_a_gateway_that_serves_only_one_of_both_says_so() -> None:
    models = SimpleNamespace(of_digest={OLD: model(OLD)}.get)
    with pytest.raises(DependencyDown, match="does not serve the revision bbbbbbbbbbbb"):
        await DriftWatch(Store(RUNNING), models, lambda: "", 1.0).look("base", ask)  # type: ignore[arg-type]


def test_the_pinned_text_is_the_same_tokens_for_both_within_the_shorter_context_or_is_refused() -> None:
    assert len(pinned_ids(model(OLD), model(NEW))) == MAX_TOKENS
    assert len(pinned_ids(model(OLD), model(NEW, max_input_tokens=40))) == 40
    for other in (model(NEW, more=(1,)), model(NEW, can_generate=False), model(NEW, max_input_tokens=1)):
        with pytest.raises(BadRequest) as refused:
            pinned_ids(model(OLD), other)
        assert refused.value.param == "gates"
