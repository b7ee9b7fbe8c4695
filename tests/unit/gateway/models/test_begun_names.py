"""Names that have moved: an answer goes on with the revision that it began with, unless that one is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratos.common.errors import DependencyDown, ModelNotFound, PermissionDenied, StratosError, StreamGone
from stratos.core.tenant import Tenant
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, make_body, parse_record
from stratos.store.tenants import block_id
from stratos_gateway.models.adapters import SnapshotBlocks
from stratos_gateway.models.catalogue import ModelCatalogue
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from tests.support.reference.shipped_model import served_model
from tests.unit.gateway.models.test_aliases import FakeAliases

OLD, NEW, OTHER, SLASHED = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
TENANT = Tenant(name="acme", id="acme")


class Names:
    """Two revisions of "base", "other" and "org/m"; the alias "chat" stands for "base" first."""

    def __init__(self) -> None:
        self.models = models = ModelSet(
            [_revision("base", OLD), _revision("other", OTHER), _revision("org/m", SLASHED)]
        )
        models.put(_revision("base", NEW), 2)
        models.see_live({OLD, NEW, OTHER, SLASHED})
        self.snapshot, self.aliases, self._versions = FollowedSnapshot(), FakeAliases(), 0
        self.move("base")
        blocks = SnapshotBlocks(cast("Any", SimpleNamespace(snapshot=self.snapshot)))
        self.late: dict[str, ServedModel] = {}
        """Revisions that come once they are waited for, by name or by digest."""
        self.is_recorded = False
        """Revisions that are not here may come later."""
        self.catalogue = ModelCatalogue(models, None, blocks, self._arrive, self.aliases)

    async def _arrive(self, name: str, digits: str = "") -> None:
        found = next((known for known in self.late if known == name or (digits and known.startswith(digits))), None)
        if found is not None:
            self.models.put(self.late.pop(found), 3)
        elif digits and self.is_recorded:
            raise DependencyDown("it is recorded, and not loaded yet")

    def move(self, model: str, digest: str = "") -> None:
        self.aliases.set("chat", (model, digest, 100))

    def block(self, name: str, *, is_blocked: bool = True) -> None:
        self._versions += 1
        body = make_body({"reason": ""} if is_blocked else {}, is_deleted=not is_blocked)
        self.snapshot.merge(parse_record(Kind.BLOCK, block_id(name), f"{self._versions} {body}"))

    async def digest(self, name: str, begun: str = "", tenant: Tenant = TENANT) -> str:
        """Of what a name stands for; raises its refusal."""
        return (await self.catalogue.look_up(tenant, name, "", begun)).target.model_digest


def _revision(name: str, digest: str) -> ServedModel:
    return replace(served_model(), base=replace(served_model().base, name=name, digest=digest))


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.mark.parametrize("target", [("other", ""), ("absent", "9" * 64)])
async def test_an_answer_goes_on_where_its_alias_stands_for_what_is_blocked_or_not_here(
    names: Names, target: Sequence[str]
) -> None:
    names.move(*target)
    names.block("other")
    with pytest.raises(StratosError):
        await names.digest("chat")
    assert await names.digest("chat", OLD) == OLD


@pytest.mark.parametrize("blocked", ["base", "chat"])
async def test_an_answer_does_not_go_on_with_a_blocked_model_whichever_its_alias_stands_for_by_now(
    names: Names, blocked: str
) -> None:
    names.move("other")
    assert await names.digest("chat", OLD) == OLD
    names.block(blocked)
    with pytest.raises(PermissionDenied):
        await names.digest("chat", OLD)


async def test_a_record_gives_no_name_that_the_key_may_not_use_and_no_model_that_has_gone(names: Names) -> None:
    narrow = replace(TENANT, plan=replace(TENANT.plan, models=("other",)))
    for name in ("chat", "base", f"base@{OLD[:8]}"):
        assert await names.digest(name, OLD) == OLD
        with pytest.raises(ModelNotFound):
            await names.digest(name, OLD, narrow)
    with pytest.raises(StreamGone):
        await names.digest("chat", "e" * 64)
    with pytest.raises(ModelNotFound):
        await names.digest("nothing", OLD)


async def test_a_gateway_that_has_not_loaded_the_revision_of_an_answer_yet_waits_for_it(names: Names) -> None:
    late = "e" * 64
    names.late[late] = _revision("base", late)
    assert await names.digest("chat", late) == late


@pytest.mark.parametrize(("name", "begun"), [("chat", "e" * 64), ("chat", ""), (f"base@{'e' * 8}", "")])
async def test_a_revision_that_is_recorded_and_not_loaded_here_is_asked_for_again_later(
    names: Names, name: str, begun: str
) -> None:
    if not begun:
        names.move("base", "e" * 64)
    with pytest.raises(ModelNotFound if not begun else StreamGone):
        await names.digest(name, begun)
    names.is_recorded = True
    with pytest.raises(DependencyDown):
        await names.digest(name, begun)


async def test_a_revision_that_an_alias_leads_to_over_other_names_is_waited_for(names: Names) -> None:
    late = "e" * 64
    names.aliases.set("base@stable", ("base", late, 100))
    names.move("base@stable")
    with pytest.raises(ModelNotFound):
        await names.digest("chat")
    names.is_recorded = True
    with pytest.raises(DependencyDown):
        await names.digest("chat")
    names.late[late] = _revision("base", late)
    assert await names.digest("chat") == late
    for one, other in (("chat", "talk"), ("talk", "chat")):  # as no admin API writes it
        names.aliases.set(one, (other, "", 100))
    with pytest.raises(ModelNotFound):
        await names.digest("chat")


async def test_a_model_whose_name_has_a_slash_can_be_blocked(names: Names) -> None:
    assert await names.digest("org/m") == SLASHED
    names.block("org/m")
    with pytest.raises(PermissionDenied):
        await names.digest("org/m")
    assert await names.digest("base") == NEW
    names.block("org/m", is_blocked=False)
    assert await names.digest("org/m") == SLASHED


async def test_a_model_is_listed_under_all_its_names_and_an_alias_under_its_own(names: Names) -> None:
    listed = [
        (await names.catalogue.resolve(TENANT, name)).listed_names for name in ("base", f"base@{OLD[:8]}", "chat")
    ]
    assert listed == [("base", "base"), (f"base@{OLD[:8]}", "base"), ("chat", "base")]
