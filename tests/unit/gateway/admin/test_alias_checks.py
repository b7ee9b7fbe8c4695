"""Aliases that follow one another: where requests go until new workers are there, and what may not be taken away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stratos.common.errors import BadRequest
from stratos.store.models.alias_forms import alias_draft, alias_to_json
from stratos.store.models.forms import model_id, model_to_json
from stratos.store.models.model_record import ModelRecord
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, make_body, parse_record
from stratos_gateway.admin.alias_checks import check_unnamed, checked_alias, choice_of
from stratos_gateway.admin.alias_routes import has_changed
from stratos_gateway.models.aliases import aliases_of, succeeding
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.settings import ModelConfig
from tests.support.paths import MODELS

FIXED, A, B, C, OTHER = (digit * 64 for digit in "0abcd")


class AliasRecords:
    """Records, and the models of a gateway: revisions A, B and C of "base", of which A has workers, and "other"."""

    def __init__(self, sample: ServedModel) -> None:
        def revision(name: str, digest: str) -> ServedModel:
            return replace(sample, base=replace(sample.base, name=name, digest=digest))

        self.snapshot, self._version = FollowedSnapshot(), 0
        self.models = ModelSet([revision("home", FIXED)])
        for name, digest in (("base", A), ("base", B), ("base", C), ("other", OTHER)):
            self.models.put(revision(name, digest), 1)
            record = ModelRecord(name=name, digest=digest, text_digest="e" * 64)
            self._write(Kind.MODEL, model_id(name, digest), make_body(model_to_json(record)))
        self.models.see_live({A, OTHER})

    def put(self, name: str, *targets: str) -> None:
        """Set an alias to equal parts, as the admin API does."""
        pairs = [target.partition("@") for target in targets]
        given = [{"model": model, "digest": digest, "weight": 100 // len(targets)} for model, _, digest in pairs]
        made = checked_alias(alias_draft(name, {"targets": given}), self.snapshot, self.models)
        old = self.snapshot.get(Kind.ALIAS, name)
        made = succeeding(made, old, choice_of(self.snapshot, self.models), self.models)
        self._write(Kind.ALIAS, name, make_body(alias_to_json(made)))

    def remove(self, name: str) -> None:
        self._write(Kind.ALIAS, name, make_body({}, is_deleted=True))

    def goes_to(self, name: str) -> str:
        served = choice_of(self.snapshot, self.models).pick(aliases_of(self.snapshot)[name], "acme")
        return "" if served is None else served.base.digest

    def _write(self, kind: Kind, record_id: str, body: str) -> None:
        self._version += 1
        self.snapshot.merge(parse_record(kind, record_id, f"{self._version} {body}"))


@pytest.fixture(scope="module")
def sample() -> Iterator[ServedModel]:
    model = ServedModel.load(ModelConfig(path=MODELS / "draft"))
    yield model
    model.grammars.close()


@pytest.fixture
def records(sample: ServedModel) -> AliasRecords:
    return AliasRecords(sample)


def test_the_first_split_of_a_model_leaves_its_requests_where_they_are_until_there_are_workers(
    records: AliasRecords,
) -> None:
    records.put("base", f"base@{B}")
    assert records.goes_to("base") == A
    records.remove("base")
    records.put("base", f"base@{C}")
    assert records.goes_to("base") == A
    records.models.see_live({A, C})
    assert records.goes_to("base") == C
    records.remove("base")
    records.put("base", f"base@{A}", f"base@{C}")
    assert aliases_of(records.snapshot)["base"].before == ()


def test_requests_stay_with_the_last_targets_that_had_workers(records: AliasRecords) -> None:
    for target in (f"base@{A}", f"base@{B}", f"base@{C}"):
        records.put("chat", target)
    assert records.goes_to("chat") == A
    records.models.see_live({A, C})
    records.put("chat", f"base@{B}")
    assert records.goes_to("chat") == C
    records.models.see_live({A, B, C})
    records.put("chat", f"base@{B}")
    assert aliases_of(records.snapshot)["chat"].before == ()  # it has moved: nothing sends it back


def test_no_edit_makes_the_way_of_another_alias_too_long_or_a_loop(records: AliasRecords) -> None:
    for name, target in (("d", "base"), ("c", "d"), ("b", "c"), ("a", "b")):
        records.put(name, target)
    records.put("base", f"base@{A}")
    assert records.goes_to("a") == A
    records.put("fast", "other")
    for name, target, reason in (("e", "a", "'e'"), ("d", "fast", "'a'"), ("d", "a", "back to itself")):
        with pytest.raises(BadRequest, match=reason):
            records.put(name, target)
    records.put("b", "fast")
    records.put("d", "fast")
    assert [records.goes_to(name) for name in "abcd"] == [OTHER] * 4


def test_what_an_alias_needs_is_not_removed(records: AliasRecords) -> None:
    def check(name: str, *digests: str) -> None:
        check_unnamed(name, digests, records.snapshot, records.models)

    records.put("talk", "other")
    with pytest.raises(BadRequest, match="'talk'"):
        check("other", OTHER)  # the last one of the name
    records.put("any", "base")
    check("base", A, B)
    records.put("chat", f"base@{A}")
    records.put("chat", f"base@{B}")
    with pytest.raises(BadRequest, match="'chat'"):
        check("base", A)  # it stands in for B
    records.models.see_live({A, B})
    check("base", A)
    records.put("start", "home")
    check("home", FIXED)  # settings keep it


def test_an_alias_that_was_written_after_it_was_checked_is_checked_again(records: AliasRecords) -> None:
    records.put("chat", "base")
    seen = records.snapshot.get(Kind.ALIAS, "chat")
    assert seen is not None
    assert not has_changed(records.snapshot, seen)
    assert not has_changed(records.snapshot, None), "what cannot be read may be replaced"
    assert has_changed(records.snapshot, replace(seen, version=seen.version + 1))
    assert has_changed(FollowedSnapshot(), seen)
