"""Aliases as JSON: what is written is read again, and what cannot be is refused by its field."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.store.models.alias_forms import alias_draft, alias_from_json, alias_to_json, pinned
from stratos.store.models.alias_record import AliasRecord, AliasTarget, Sticky
from stratos.store.records.record import Kind, make_body, parse_record

OLD, NEW = "a" * 64, "b" * 64
SPLIT = AliasRecord(
    name="org/base@stable",
    targets=(
        AliasTarget(model="org/base", digest=OLD, weight=90),
        AliasTarget(model="org/base", digest=NEW, weight=10),
    ),
    before=(AliasTarget(model="org/base"),),
    sticky=Sticky.TENANT,
)


def test_an_alias_is_read_as_it_was_written() -> None:
    assert alias_from_json(SPLIT.name, alias_to_json(SPLIT)) == SPLIT
    assert parse_record(Kind.ALIAS, SPLIT.name, f"7 {make_body(alias_to_json(SPLIT))}").value == SPLIT


@pytest.mark.parametrize(
    ("name", "changes", "param"),
    [
        ("base@", {}, "name"),
        ("@stable", {}, "name"),
        ("base@a b", {}, "name"),
        ("base@stable@old", {}, "name"),
        ("base@0123abcd", {}, "name"),  # it reads as a digest
        ("chat", {"targets": []}, "targets"),
        ("chat", {"targets": [{"model": "base", "weight": 99}]}, "targets"),
        ("chat", {"targets": [{"model": "a", "weight": 60}, {"model": "b", "weight": 60}]}, "targets"),
        ("chat", {"targets": [{"model": "a", "weight": 50}, {"model": "a", "weight": 50}]}, "targets"),
        ("chat", {"targets": [{"model": "a", "weight": 100}, {"model": "b", "weight": 0}]}, "targets.1.weight"),
        ("chat", {"targets": [{"model": "chat"}]}, "targets"),
        ("chat", {"targets": [{"model": "base", "digest": "xyz"}]}, "targets"),
        ("base@stable", {"targets": [{"model": "other"}]}, "targets"),
        ("chat", {"sticky": "mostly"}, "sticky"),
        ("chat", {"until": 1}, "until"),
        ("chat", {"name": "other"}, "alias"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(name: str, changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        alias_from_json(name, {"targets": [{"model": "base"}], **changes})
    assert refusal.value.param == param


def test_a_digest_that_is_cut_off_is_none_of_a_record() -> None:
    value = {"targets": [{"model": "base", "digest": OLD[:12]}]}
    assert alias_draft("chat", value).targets[0].digest == OLD[:12]
    with pytest.raises(BadRequest):
        alias_from_json("chat", value)


def test_a_name_pins_a_revision_where_a_digest_follows_it() -> None:
    assert pinned(f"base@{OLD[:8]}") == ("base", OLD[:8])
    assert [pinned(name) for name in ("base", "base@stable", "base@abc", "@aaaaaaaa")] == [None] * 4
