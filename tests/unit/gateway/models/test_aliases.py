"""Which revision a session gets: by weight, the same one while weights stay, and never one without workers for long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from stratos.store.models.alias_record import AliasRecord, AliasTarget, Sticky
from stratos_gateway.models.aliases import AliasChoice, AliasSource
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.settings import ModelConfig
from tests.support.paths import MODELS

SESSIONS = [f"session-{number}" for number in range(1000)]


class FakeAliases(AliasSource):
    """Those that a test has set."""

    def __init__(self) -> None:
        self.of: dict[str, AliasRecord] = {}

    def set(self, name: str, *targets: tuple[str, str, int], **more: object) -> AliasRecord:
        made = tuple(AliasTarget(model=model, digest=digest, weight=weight) for model, digest, weight in targets)
        self.of[name] = AliasRecord(name=name, targets=made, **more)  # type: ignore[arg-type]
        return self.of[name]

    def find(self, name: str) -> AliasRecord | None:
        return self.of.get(name)

    def list(self) -> Sequence[AliasRecord]:
        return list(self.of.values())


@pytest.fixture(scope="module")
def sample() -> Iterator[ServedModel]:
    model = ServedModel.load(ModelConfig(path=MODELS / "draft"))
    yield model
    model.grammars.close()


@pytest.fixture
def models(sample: ServedModel) -> ModelSet:
    """Two revisions of "base", both with workers, and "other"."""
    found = ModelSet([_revision(sample, "base", "old"), _revision(sample, "other", "o1")])
    found.put(_revision(sample, "base", "new"), 2)
    found.see_live({"old", "new", "o1"})
    return found


@pytest.fixture
def aliases() -> FakeAliases:
    return FakeAliases()


@pytest.fixture
def choice(models: ModelSet, aliases: FakeAliases) -> AliasChoice:
    return AliasChoice(aliases, models, Random(5))


def _revision(sample: ServedModel, name: str, digest: str) -> ServedModel:
    return replace(sample, base=replace(sample.base, name=name, digest=digest))


def picked(choice: AliasChoice, alias: AliasRecord, tenant: str = "acme", session: str = "") -> str:
    served = choice.pick(alias, tenant, session)
    return "" if served is None else served.base.digest


def test_sessions_are_split_by_weight_and_a_weight_that_grows_moves_no_session_back(
    choice: AliasChoice, aliases: FakeAliases
) -> None:
    before: set[str] = set()
    for weight in (1, 10, 50, 90):
        alias = aliases.set("base", ("base", "old", 100 - weight), ("base", "new", weight))
        new = {session for session in SESSIONS if picked(choice, alias, session=session) == "new"}
        assert abs(len(new) - 10 * weight) < 60
        assert before <= new  # who has the new revision keeps it
        before = new


@pytest.mark.parametrize(("sticky", "kinds"), [(Sticky.SESSION, 2), (Sticky.TENANT, 1), (Sticky.REQUEST, 2)])
def test_what_sticks_is_the_session_the_tenant_or_nothing(
    choice: AliasChoice, aliases: FakeAliases, sticky: Sticky, kinds: int
) -> None:
    alias = aliases.set("base", ("base", "old", 50), ("base", "new", 50), sticky=sticky)
    of_sessions = Counter(picked(choice, alias, session=session) for session in SESSIONS[:64])
    assert len(of_sessions) == kinds
    again = {picked(choice, alias, session="one") for _ in range(64)}
    assert len(again) == (2 if sticky is Sticky.REQUEST else 1)
    if sticky is not Sticky.REQUEST:  # who names no session goes by the tenant
        assert len({picked(choice, alias, tenant) for tenant in SESSIONS[:64]}) == 2


def test_targets_without_workers_get_no_session_while_another_has_some(
    choice: AliasChoice, aliases: FakeAliases, models: ModelSet
) -> None:
    alias = aliases.set("base", ("base", "old", 50), ("base", "new", 50))
    models.see_live({"old"})
    assert {picked(choice, alias, session=session) for session in SESSIONS[:64]} == {"old"}
    moved = aliases.set("base", ("base", "new", 100), before=(AliasTarget(model="base", digest="old"),))
    assert picked(choice, moved) == "old"  # the new pool is not there yet
    assert [[served.base.digest for _, served in of(moved)] for of in (choice.open_now, choice.arms)] == [
        ["old"],
        ["new"],
    ]
    models.see_live({"old", "new"})
    assert picked(choice, moved) == "new"
    models.see_live(frozenset())
    assert picked(choice, moved) == "new"  # it is told that there are no workers


def test_aliases_lead_to_names_and_a_loop_leads_nowhere(
    choice: AliasChoice, aliases: FakeAliases, models: ModelSet
) -> None:
    chat = aliases.set("chat", ("base@stable", "", 100))
    aliases.set("base@stable", ("base", "old", 100))
    assert picked(choice, chat) == "old"
    aliases.set("base@stable", ("base", "", 100))
    aliases.set("base", ("base", "new", 100))
    assert picked(choice, chat) == "new"
    models.drop("new")
    assert picked(choice, chat) == ""
    aliases.set("base@stable", ("chat", "", 100))
    assert picked(choice, chat) == ""
    assert picked(choice, aliases.set("wrong", ("other", "old", 100))) == ""  # a digest of another name


def test_the_split_of_a_model_makes_no_way_to_it_longer(choice: AliasChoice, aliases: FakeAliases) -> None:
    names = ["a", "b", "c", "d", "base"]
    for name, target in pairwise(names):
        aliases.set(name, (target, "", 100))
    longer = aliases.set("longer", ("a", "", 100))
    assert [picked(choice, aliases.of["a"]), picked(choice, longer)] == ["new", ""]
    aliases.set("base", ("base", "old", 100), before=(AliasTarget(model="base", digest="new"),))
    assert [picked(choice, aliases.of["a"]), picked(choice, longer)] == ["old", ""]
