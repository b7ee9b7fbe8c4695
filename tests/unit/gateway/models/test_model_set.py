"""Revisions of one name: which one new requests get, and what stays known of one that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stratos.common.errors import InvalidCheckpoint, PeerRefused
from stratos.core.placement import WorkerRole
from stratos_gateway.models.live_revisions import LiveWorkers, look_at, watch_revisions
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.settings import ModelConfig
from tests.support.paths import MODELS
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def sample() -> Iterator[ServedModel]:
    model = ServedModel.load(ModelConfig(path=MODELS / "draft"))
    yield model
    model.grammars.close()


def revision(sample: ServedModel, digest: str, name: str = "base") -> ServedModel:
    return replace(sample, base=replace(sample.base, name=name, digest=digest))


def current(models: ModelSet, name: str = "base") -> str:
    served = models.get(name)
    return "" if served is None else served.base.digest


def test_a_name_goes_to_the_newest_revision_that_has_live_workers(sample: ServedModel) -> None:
    models = ModelSet([revision(sample, "one")])
    models.put(revision(sample, "two"), 2)
    assert current(models) == "one"  # nobody has said yet that the new one has workers
    models.see_live({"one", "two"})
    assert current(models) == models.home.base.digest == "two"
    models.put(revision(sample, "three"), 3)
    assert current(models) == "two"
    models.see_live({"one", "three"})
    assert current(models) == "three"
    models.see_live({"one"})
    assert current(models) == "one"
    models.see_live(frozenset())
    assert current(models) == "one"  # who has no worker at all waits where it was


def test_a_revision_that_is_added_again_is_the_newest(sample: ServedModel) -> None:
    models = ModelSet([revision(sample, "one")])
    models.put(revision(sample, "two"), 2)
    models.see_live({"one", "two"})
    models.put(revision(sample, "one"), 3)
    assert current(models) == "one"
    models.drop("one")  # settings name it: it stays, as the oldest
    assert current(models) == "two"
    models.drop("two")
    assert current(models) == "one"


def test_a_dropped_revision_takes_no_new_request_and_keeps_its_router(sample: ServedModel) -> None:
    models = ModelSet([revision(sample, "one")])
    heard: list[int] = []
    models.on_change(lambda: heard.append(len(models.revisions)))
    models.put(revision(sample, "s1", "small"), 2)
    models.drop("s1")
    models.drop("s1")
    assert (current(models, "small"), models.of_digest("s1"), models.name_of("s1")) == ("", None, "small")
    assert (models.name_of("never"), heard, models.has_choice) == ("never", [2, 1], False)


def test_a_revision_that_comes_again_gets_no_request_before_its_workers_are_seen(sample: ServedModel) -> None:
    models = ModelSet([revision(sample, "one")])
    models.put(revision(sample, "two"), 2)
    models.see_live({"one", "two"})
    models.drop("two")
    models.put(revision(sample, "two"), 3)
    assert current(models) == "one"


async def test_live_revisions_are_looked_at_when_one_comes_without_waiting_for_the_next_look(
    sample: ServedModel,
) -> None:
    models, looks = ModelSet([revision(sample, "one")]), list[str]()

    async def live_workers() -> LiveWorkers:
        looks.append("look")
        return {"two": {WorkerRole.DECODE: 1}}

    watch = asyncio.create_task(watch_revisions(models, live_workers, poll_s=3600.0))
    await asyncio.sleep(0)
    assert (looks, models.has_looked) == ([], False)
    models.put(revision(sample, "two"), 2)
    await eventually(lambda: current(models) == "two", "it is looked at")
    assert models.has_looked
    watch.cancel()
    await asyncio.wait([watch])


async def test_a_router_that_does_not_tell_is_named_once_and_so_is_its_return(
    sample: ServedModel, caplog: pytest.LogCaptureFixture
) -> None:
    models, answers = ModelSet([revision(sample, "one")]), ["no", "no", "", ""]
    caplog.set_level("INFO")

    async def live_workers() -> LiveWorkers:
        if answers and (refusal := answers.pop(0)):
            raise PeerRefused(refusal)
        return {"two": {WorkerRole.DECODE: 1}}

    models.put(revision(sample, "two"), 2)
    watch = asyncio.create_task(watch_revisions(models, live_workers, poll_s=0.001))
    await eventually(lambda: not answers and current(models) == "two", "it is told")
    watch.cancel()
    await asyncio.wait([watch])
    said = [record.getMessage() for record in caplog.records]
    assert [text.rpartition(": ")[2] for text in said] == ["no", "it is known again which revisions have workers"]


def test_one_digest_has_one_name(sample: ServedModel) -> None:
    models = ModelSet([revision(sample, "one")])
    with pytest.raises(InvalidCheckpoint, match="are one model"):
        models.put(revision(sample, "one", "other"), 2)
    assert [model.base.name for model in models] == ["base"]


def test_only_workers_that_can_take_a_request_make_a_revision_live(sample: ServedModel) -> None:
    embeds = replace(sample, base=replace(sample.base, name="vectors", digest="v2", can_generate=False))
    models = ModelSet([revision(sample, "one"), revision(sample, "v1", "vectors")])
    models.put(revision(sample, "two"), 2)
    models.put(embeds, 2)
    look_at(models, {"two": {WorkerRole.PREFILL: 1}, "v2": {WorkerRole.PREFILL: 1}})
    assert (current(models), current(models, "vectors")) == ("one", "v2")
    look_at(models, {"two": {WorkerRole.DECODE: 1}})
    assert current(models) == "two"


def test_a_revision_is_superseded_once_another_one_of_its_name_alone_has_workers(sample: ServedModel) -> None:
    models, said = ModelSet([revision(sample, "one")]), list[bool]()
    models.on_succession(lambda: said.append(models.is_superseded("one")))
    models.put(revision(sample, "two"), 2)
    for live in ({"one"}, {"one", "two"}, set[str](), {"two"}):
        models.see_live(live)
    assert said == [False, False, False, False, True]
    models.drop("two")
    assert not models.is_superseded("one")
    assert not models.is_superseded("two"), "nothing else has its name"
