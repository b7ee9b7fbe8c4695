"""Two controllers, a person and crashes in any order: no step without evidence, no weights of the past, always an end.

Controllers are driven from one access of the store to the next, so that every order of their reads and writes can be
drawn, and each can be stopped for ever between any two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Generator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.common.errors import BadRequest
from stratos.core.ledger.steps import bucket_of
from stratos.store.counters.arm_counts import ArmCounts, CountName
from stratos.store.models.alias_forms import alias_to_json
from stratos.store.models.alias_record import AliasRecord, AliasTarget
from stratos.store.models.rollout_forms import rollout_to_json
from stratos.store.models.rollout_record import Drift, RolloutGates, RolloutPhase, RolloutRecord
from stratos.store.records.record import Kind, Record, make_body, parse_record, version_of
from stratos.store.records.record_store import VersionConflict
from stratos.store.records.writer import RecordWriter
from stratos_gateway.rollouts.controller import RolloutController, read_rollout
from stratos_gateway.rollouts.routes import turned
from tests.support.examples import examples

OLD, NEW = "a" * 64, "b" * 64
HOLD_US = 10_000_000
STEPS = (10, 50, 100)
START = RolloutRecord(model="base", old=OLD, new=NEW, steps=STEPS, hold_s=10, gates=RolloutGates(errors=1, ttft_p99=20))
BY_HAND = AliasRecord(name="base", targets=(AliasTarget(model="base", digest="c" * 64),))
GOOD, BAD = (
    ArmCounts(300, errors, ttfts=Counter({bucket_of(ttft_us): 300}))
    for errors, ttft_us in ((0, 100_000), (30, 300_000))
)


class Turn:
    """Another one of the controllers may be next."""

    def __await__(self) -> Generator[None]:
        yield


class Store:
    """Records, counts and routers in memory; every access waits for its turn first. Checks each write."""

    def __init__(self) -> None:
        self.texts: dict[tuple[Kind, str], str] = {}
        self.now, self.counts, self.has_workers = 1, dict[CountName, dict[str, ArmCounts]](), True
        self.lacks = False
        """Some gateway does not serve the new revision."""
        self.history = [START]
        """The roll-out in all its versions."""
        self._shown = -1
        """Version of the roll-out that the alias shows."""
        self.put(Kind.ROLLOUT, make_body(rollout_to_json(START)))

    @property
    def rollout(self) -> RolloutRecord:
        return self.history[-1]

    async def text_of(self, kind: Kind, record_id: str) -> str | None:
        await Turn()
        return self.texts.get((kind, record_id))

    async def now_us(self) -> int:
        await Turn()
        return self.now

    async def sums(self, name: CountName) -> dict[str, ArmCounts]:
        await Turn()
        return dict(self.counts.get(name, {}))

    async def forget(self, name: CountName) -> None:
        await Turn()
        assert name.epoch < self.rollout.epoch, "counts that are judged stay"

    async def lacking(self, wanted: Collection[str], known: Collection[str]) -> list[str]:
        await Turn()
        assert (list(wanted), list(known)) == ([NEW], [OLD])
        return ["a gateway"] if self.lacks else []

    async def are_there_workers(self, digest: str) -> bool:
        await Turn()
        assert digest == NEW
        return self.has_workers

    async def write(self, kind: Kind, record_id: str, body: str, *, seen: int, **more: Any) -> int:
        await Turn()
        if version_of(self.texts.get((kind, record_id))) != seen:
            raise VersionConflict
        assert more["audit"].action
        if kind is Kind.ALIAS:
            self._check_weights(body)
        else:
            self._check_change(body)
        self.put(kind, body)
        return self.now

    def count(self, new: ArmCounts) -> None:
        """Requests of both revisions, for the step that runs."""
        if self.rollout.is_counted:
            self.counts[CountName.of(self.rollout)] = {OLD: GOOD, NEW: new}

    def put(self, kind: Kind, body: str) -> None:
        self.now += 1
        self.texts[kind, "base"] = f"{self.now} {body}"

    def _check_weights(self, body: str) -> None:
        alias = parse_record(Kind.ALIAS, "base", f"1 {body}").value
        assert isinstance(alias, AliasRecord), "weights add up, or it could not be read"
        shown = [n for n, past in enumerate(self.history) if n >= self._shown and past.targets == alias.targets]
        assert shown, "weights of the past replace later ones"
        self._shown = shown[0]

    def _check_change(self, body: str) -> None:
        before, after = self.rollout, parse_record(Kind.ROLLOUT, "base", f"1 {body}").value
        assert isinstance(after, RolloutRecord)
        assert before.is_active or (after == replace(before, is_applied=True)), "an end is the end"
        goes_on = after.step > before.step or (before.is_active and after.phase is RolloutPhase.DONE)
        if goes_on:
            assert (before.phase, before.is_applied) == (RolloutPhase.RUNNING, True)
            assert after.step - before.step == (after.phase is RolloutPhase.RUNNING)
            assert self.now - before.since_us >= HOLD_US, "the hold was not over"
            found = self.counts[CountName.of(before)]
            assert found[NEW].num_requests >= 200, "there was no evidence"
        if before.is_active and after.phase is RolloutPhase.ROLLED_BACK and before.drift is None:
            assert self.counts[CountName.of(before)][NEW] is BAD
        if after.is_applied and not before.is_applied:
            alias = parse_record(Kind.ALIAS, "base", self.texts[Kind.ALIAS, "base"]).value
            assert isinstance(alias, AliasRecord)
            assert alias.targets in (after.targets, BY_HAND.targets), "it says weights that are not there"
        self.history.append(after)


class Driven:
    """Something that works on the store, from one access to the next."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._begin = begin
        self._work: Coroutine[Any, Any, Any] | None = None

    def go(self) -> object:
        """Go on to the next access; at the end of the work its answer, and it begins again. ``None`` in between."""
        if self._work is None:
            self._work = self._begin()
        try:
            self._work.send(None)
        except StopIteration as end:
            self._work = None
            return ("ended", end.value)
        except BadRequest as error:
            self._work = None
            return ("ended", error)
        return None

    def end(self) -> object:
        """Go on to the end of the work; returns its answer."""
        while (answer := self.go()) is None:
            pass
        return answer

    def die(self) -> None:
        """What it has read is lost; another process begins."""
        if self._work is not None:
            self._work.close()
            self._work = None


def succeeds(alias: AliasRecord, old: Record | None) -> AliasRecord:
    """What served until now goes on, as ``succeeding`` has it."""
    before = old.value.targets if old is not None and isinstance(old.value, AliasRecord) else ()
    return replace(alias, before=before)


def controller(store: Store) -> Driven:
    fake: Any = store
    found = RolloutController(fake, fake, store.are_there_workers, lambda: "", store.lacking, succeeds)
    return Driven(lambda: found.turn("base"))


def person(store: Store, verb: str) -> Driven:
    async def turn() -> None:
        writer = RecordWriter(store, actor="key:root")  # type: ignore[arg-type]
        _, rollout = await read_rollout(writer, "base")
        assert rollout is not None
        if rollout.is_active:
            now_us = await store.now_us()
            await writer.change(Kind.ROLLOUT, "base", f"rollout.{verb}", turned(verb, "base", now_us, "a person"))

    return Driven(turn)


MOVES = (
    *("one", "two") * 4, *("turn of one", "turn of two") * 3, "die one", "die two", *("later", "good") * 3, "bad",
    "nothing", "workers", "gateways", "person",
)  # fmt: skip


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.sampled_from(MOVES), min_size=60, max_size=150),
    st.lists(st.sampled_from(["pause", "resume", "resume", "abort"]), min_size=1, max_size=3),
)
def test_no_order_of_reads_writes_and_crashes_takes_a_step_without_evidence_or_misses_the_end(
    moves: list[str], verbs: list[str]
) -> None:
    store = Store()
    driven = {"one": controller(store), "two": controller(store)}
    persons = [person(store, verb) for verb in verbs]
    for move in moves:
        if move in driven:
            driven[move].go()
        elif move.startswith("turn"):
            driven[move.removeprefix("turn of ")].end()
        elif move.startswith("die"):
            driven[move.removeprefix("die ")].die()
        elif move == "person":
            if persons[0].go() is not None:
                persons.append(persons.pop(0))
        elif move == "later":
            store.now += HOLD_US // 2
        elif move == "workers":
            store.has_workers = not store.has_workers
        elif move == "gateways":
            store.lacks = not store.lacks
        else:
            store.count({"good": GOOD, "bad": BAD, "nothing": ArmCounts()}[move])
    for each in (*driven.values(), *persons):
        each.die()
    _ends(store)


@pytest.mark.parametrize("end", [None, "abort"])
def test_a_controller_that_sleeps_between_any_two_accesses_does_nothing_with_what_it_has_read(end: str | None) -> None:
    """One controller stops after some accesses of its turn, another one goes on for a while, then the first does."""
    for num_before in range(10):
        for num_accesses in range(1, 8):
            store = Store()
            sleeper, other = controller(store), controller(store)
            _take(store, other, num_before)
            for _ in range(num_accesses):
                sleeper.go()
            _take(store, other, 4)
            if end is not None:
                person(store, end).end()
                _take(store, other, 2)
            sleeper.end()
            _ends(store)


def _take(store: Store, driven: Driven, num_turns: int) -> None:
    for _ in range(num_turns):
        driven.end()
        store.count(GOOD)
        store.now += HOLD_US


def _ends(store: Store) -> None:
    """A controller that is left alone, with good requests and workers, comes to an end."""
    store.has_workers, store.lacks, alone, resumed = True, False, controller(store), person(store, "resume")
    for _ in range(40 * len(STEPS)):
        if store.rollout.phase is RolloutPhase.PAUSED:
            resumed.end()
        store.count(GOOD)
        answer = alone.end()
        store.now += HOLD_US // 4
        if not store.rollout.is_active and answer == ("ended", False):
            break
    last = store.rollout
    assert not last.is_active
    assert last.is_applied
    alias = parse_record(Kind.ALIAS, "base", store.texts[Kind.ALIAS, "base"]).value
    assert isinstance(alias, AliasRecord)
    assert alias.targets == (AliasTarget(model="base", digest=NEW if last.phase is RolloutPhase.DONE else OLD),)


def test_while_a_gateway_does_not_serve_the_new_revision_nothing_goes_on_and_the_way_back_is_open() -> None:
    store = Store()
    one = controller(store)
    store.lacks = True
    _take(store, one, 5)
    assert (Kind.ALIAS, "base") not in store.texts, "not even the first step"
    store.lacks = False
    _take(store, one, 2)
    assert (store.rollout.step, store.rollout.is_applied) == (0, True)
    store.lacks = True
    _take(store, one, 5)
    assert store.rollout.step == 0
    store.counts = {CountName.of(store.rollout): {OLD: GOOD, NEW: BAD}}
    one.end()
    assert store.rollout.phase is RolloutPhase.ROLLED_BACK
    one.end()
    assert shown(store).before == START.targets, "what served goes on until the old revision has workers"


@pytest.mark.parametrize(("mean", "phase"), [(0.1, RolloutPhase.DONE), (0.2, RolloutPhase.ROLLED_BACK)])
def test_no_request_goes_to_a_revision_whose_drift_is_unknown_or_too_large(mean: float, phase: RolloutPhase) -> None:
    """Not even where one step sends it all."""
    store = Store()
    store.history = [replace(START, steps=(100,), gates=RolloutGates(drift=0.1))]
    store.put(Kind.ROLLOUT, make_body(rollout_to_json(store.rollout)))
    one = controller(store)
    _take(store, one, 5)
    assert (Kind.ALIAS, "base") not in store.texts
    measured = replace(store.rollout, drift=Drift(mean=mean, largest=1.0, num_tokens=100))
    store.history = [measured]
    store.put(Kind.ROLLOUT, make_body(rollout_to_json(measured)))
    _take(store, one, 5)
    assert (store.rollout.phase, store.rollout.is_applied) == (phase, True)
    assert [target.digest for target in shown(store).targets] == [NEW if phase is RolloutPhase.DONE else OLD]


def test_a_pause_writes_no_weights() -> None:
    """Neither of a step that was decided, nor of the first one."""
    for num_turns, steps, percent in ((0, 0, None), (3, 0, 10)):
        store = Store()
        one = controller(store)
        _take(store, one, num_turns)
        assert not store.rollout.is_applied
        person(store, "pause").end()
        _take(store, one, 4)
        assert (store.rollout.phase, store.rollout.step) == (RolloutPhase.PAUSED, steps)
        if percent is None:
            assert (Kind.ALIAS, "base") not in store.texts
        else:
            assert shown(store).targets == START.targets_at(percent)
        assert store.rollout.is_applied is (percent is not None)
        _ends(store)


@pytest.mark.parametrize("is_aborted", [False, True])
def test_an_alias_that_was_changed_by_hand_as_it_began_is_left(is_aborted: bool) -> None:
    store = Store()
    store.history = [replace(START, alias_version=0)]
    store.put(Kind.ROLLOUT, make_body(rollout_to_json(store.rollout)))
    store.put(Kind.ALIAS, make_body(alias_to_json(BY_HAND)))
    if is_aborted:
        person(store, "abort").end()
    one = controller(store)
    _take(store, one, 3)
    assert shown(store) == BY_HAND
    assert (store.rollout.phase, store.rollout.is_applied) == (RolloutPhase.ABORTED, True)
    assert ("by hand" in store.rollout.reason) is not is_aborted


def shown(store: Store) -> AliasRecord:
    """The alias as it is written."""
    alias = parse_record(Kind.ALIAS, "base", store.texts[Kind.ALIAS, "base"]).value
    assert isinstance(alias, AliasRecord)
    return alias


def test_an_alias_whose_past_was_dropped_as_it_began_is_no_edit_by_hand() -> None:
    store = Store()
    store.history = [replace(START, alias_version=1)]
    store.put(Kind.ROLLOUT, make_body(rollout_to_json(store.rollout)))
    store.put(Kind.ALIAS, make_body(alias_to_json(AliasRecord(name="base", targets=START.targets_at(0)))))
    _take(store, controller(store), 2)
    assert (store.rollout.phase, store.rollout.is_applied) == (RolloutPhase.RUNNING, True)
