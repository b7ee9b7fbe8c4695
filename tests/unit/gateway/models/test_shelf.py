"""Models that come and go with their records, at one gateway: a bad one is refused by name and harms no other."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown, InvalidCheckpoint, StratosError
from stratos.store.models.model_record import ModelRecord
from stratos.store.models.texts import AlteredWords
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.settings import ModelConfig, ModelRecordsConfig
from stratos_gateway.models.shelf import FIRST_WAIT_S, ModelShelf, Phase, Wanted
from tests.support.paths import MODELS
from tests.support.waiting import eventually

DRAFT = MODELS / "draft"


@dataclass
class Texts:
    """Text folders of a test: by the text digest of a record."""

    folders: dict[str, Path]
    errors: dict[str, Exception] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def fetch(self, digest: str) -> Path:
        if digest == "slow":
            await self.gate.wait()
        if (error := self.errors.get(digest)) is not None:
            raise error
        return self.folders[digest]

    async def keep(self, digests: set[str]) -> None:
        self.kept = digests


@dataclass
class Shelf:
    shelf: ModelShelf
    models: ModelSet
    texts: Texts
    wanted: dict[str, Wanted]
    clock: FakeClock

    def put(self, name: str, digest: str, texts: str, version: int = 1, **terms: int) -> None:
        record = ModelRecord(name=name, digest=digest, text_digest=texts, **terms)
        self.wanted[f"{name}/{digest}"] = Wanted(record=record, version=version)
        self.shelf.note_change()

    def remove(self, name: str, digest: str) -> None:
        del self.wanted[f"{name}/{digest}"]
        self.shelf.note_change()

    async def until(self, name: str, digest: str, phase: Phase, reason: str = "") -> None:
        def stands() -> bool:
            placed = self.shelf.placed.get(f"{name}/{digest}")
            return placed is not None and placed.phase is phase and reason in placed.reason and placed.work is None

        await eventually(stands, f"{name} is {phase}")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Shelf]:
    broken = tmp_path / "broken"
    broken.mkdir()
    shutil.copy(DRAFT / "config.json", broken)
    (broken / "tokenizer.json").write_text('{"model": 7}', encoding="utf-8")
    home = await asyncio.to_thread(ServedModel.load, ModelConfig(path=DRAFT, name="home"))
    models = ModelSet([replace(home, base=replace(home.base, digest="home"))])
    texts = Texts({"good": DRAFT, "slow": DRAFT, "broken": broken, "missing": tmp_path / "nothing"})
    wanted: dict[str, Wanted] = {}
    clock, config = FakeClock(), ModelRecordsConfig(max_models=3, retry_s=0.01)
    shelf = ModelShelf(lambda: dict(wanted), models, texts, config, clock)
    run = asyncio.create_task(shelf.run())
    yield Shelf(shelf, models, texts, wanted, clock)
    run.cancel()
    await asyncio.wait([run])
    models.close()


async def test_a_model_comes_changes_and_goes_with_its_record(world: Shelf) -> None:
    world.put("small", "s1", "good", max_input_tokens=10)
    await world.until("small", "s1", Phase.SERVING)
    first = world.models.get("small")
    assert first is not None
    assert (first.base.digest, first.max_input_tokens) == ("s1", 10)
    world.put("small", "s1", "good", version=2, max_input_tokens=20)
    await eventually(lambda: (m := world.models.get("small")) is not None and m.max_input_tokens == 20, "new terms")
    assert first.max_input_tokens == 10  # a request keeps what it began with
    world.remove("small", "s1")
    await eventually(lambda: world.models.get("small") is None, "it is gone")
    assert world.models.home.base.digest == "home"


@pytest.mark.parametrize(("texts", "reason"), [("broken", "tokenizer.json cannot be read"), ("missing", "config.json")])
async def test_a_model_that_cannot_be_read_is_refused_and_its_neighbour_is_not(
    world: Shelf, texts: str, reason: str
) -> None:
    world.put("bad", "b1", texts)
    world.put("small", "s1", "good", version=2)
    await world.until("bad", "b1", Phase.REFUSED, reason)
    await world.until("small", "s1", Phase.SERVING)
    assert world.models.get("bad") is None
    world.put("bad", "b1", "good", version=3)
    await world.until("bad", "b1", Phase.SERVING)


@pytest.mark.parametrize("error", [DependencyDown("it does not answer"), AlteredWords("the files have another digest")])
async def test_a_store_that_is_away_or_lacks_some_files_is_asked_again(world: Shelf, error: StratosError) -> None:
    world.texts.errors["good"] = error
    world.put("small", "s1", "good")
    await world.until("small", "s1", Phase.REFUSED, error.message)
    del world.texts.errors["good"]
    await world.until("small", "s1", Phase.SERVING)


async def test_bounds_and_names_hold(world: Shelf) -> None:
    world.put("small", "s1", "good")
    await world.until("small", "s1", Phase.SERVING)
    world.put("twin", "s1", "good", version=2)
    world.put("first", "home", "good", version=3)
    await world.until("twin", "s1", Phase.REFUSED, "another name has this digest")
    await world.until("first", "home", Phase.REFUSED, "are one model")
    world.put("a", "a1", "good", version=4)
    world.put("b", "b1", "good", version=5)
    world.put("c", "c1", "good", version=6)
    await world.until("c", "c1", Phase.REFUSED, "more records than MODEL_RECORDS__MAX_MODELS: 3")
    await world.until("b", "b1", Phase.SERVING)
    world.remove("a", "a1")
    await world.until("c", "c1", Phase.SERVING)
    assert world.texts.kept == {"good"}


async def test_a_record_that_is_refused_for_good_gives_its_place_to_the_oldest_that_waits(world: Shelf) -> None:
    for number, texts in enumerate(("slow", "good", "good", "good", "good")):
        world.put(f"m{number}", f"d{number}", texts, version=number + 1)
    await world.until("m3", "d3", Phase.REFUSED, "more records")
    world.texts.errors["slow"] = InvalidCheckpoint("it is none")
    world.texts.gate.set()
    await world.until("m3", "d3", Phase.SERVING)
    await world.until("m4", "d4", Phase.REFUSED, "more records")


async def test_a_model_that_may_be_served_a_while_later_is_not_said_to_be_unknown(world: Shelf) -> None:
    world.texts.errors["good"] = DependencyDown("the object store does not answer")
    world.put("small", "s1", "good")
    world.put("bad", "b1", "broken", version=2)
    await world.until("bad", "b1", Phase.REFUSED)
    with pytest.raises(DependencyDown):
        await world.shelf.wait_for("small")
    await world.shelf.wait_for("bad")
    await world.shelf.wait_for("other")
    world.texts.folders["fine"] = DRAFT
    world.put("small", "r1", "fine", version=3)
    await world.until("small", "r1", Phase.SERVING)
    for name, digits in (("", "s1"), ("small", "s")):  # an answer that began on it, or a pin
        with pytest.raises(DependencyDown):
            await world.shelf.wait_for(name, digits)
    for name, digits in (("small", ""), ("small", "r"), ("other", "s1"), ("", "b1")):
        await world.shelf.wait_for(name, digits)
    del world.texts.errors["good"]
    await world.until("small", "s1", Phase.SERVING)
    await world.shelf.wait_for("small")


async def test_a_gateway_is_not_ready_before_it_knows_which_revisions_have_workers(world: Shelf) -> None:
    world.put("small", "s1", "good")
    world.put("small", "s2", "good", version=2)
    await world.until("small", "s1", Phase.SERVING)
    await world.until("small", "s2", Phase.SERVING)
    assert "no router has said" in world.shelf.not_ready_reason()
    world.models.see_live({"s1"})
    assert world.shelf.not_ready_reason() == ""


async def test_what_was_checked_is_what_is_served_and_its_words_are_kept(world: Shelf) -> None:
    record = ModelRecord(name="small", digest="s1", text_digest="good")
    checked = await world.shelf.check(record)
    world.put("other", "o1", "slow", version=2)
    world.texts.gate.set()
    await world.until("other", "o1", Phase.SERVING)
    assert world.texts.kept == {"good", "slow"}
    world.put("small", "s1", "good", version=3)
    await world.until("small", "s1", Phase.SERVING)
    assert world.models.get("small") is checked
    world.put("small", "s1", "broken", version=4)
    await world.until("small", "s1", Phase.REFUSED)
    assert "good" in world.texts.kept  # what is served goes on, with its words


async def test_ten_thousand_records_cost_a_moment_and_those_that_came_first_are_served(world: Shelf) -> None:
    for number in range(10_000):
        record = ModelRecord(name=f"m{number}", digest=f"d{number}", text_digest="good")
        world.wanted[f"m{number}/d{number}"] = Wanted(record=record, version=number + 1)
    world.shelf.note_change()
    begun = time.process_time()
    await world.shelf.wait_for("m0")
    assert time.process_time() - begun < 10.0  # it is half a second, and was minutes where each looked at all others
    for number in range(3):
        await world.until(f"m{number}", f"d{number}", Phase.SERVING)
    await world.until("m3", "d3", Phase.REFUSED, "more records")
    assert {model.base.name for model in world.models} == {"home", "m0", "m1", "m2"}


async def test_a_gateway_is_ready_when_its_models_are_or_after_a_while(world: Shelf) -> None:
    world.put("late", "l1", "slow")
    world.put("small", "s1", "good", version=2)
    await world.until("small", "s1", Phase.SERVING)
    assert world.shelf.not_ready_reason()
    world.clock.advance(FIRST_WAIT_S)
    assert world.shelf.not_ready_reason() == ""
    waiting = asyncio.create_task(world.shelf.wait_for("late"))
    await asyncio.sleep(0)
    world.texts.gate.set()
    await waiting
    assert world.models.get("late") is not None
    world.put("other", "o1", "good", version=3)
    assert world.shelf.not_ready_reason() == ""  # what comes later holds nothing up
