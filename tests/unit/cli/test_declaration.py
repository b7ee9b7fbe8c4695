"""Declarations as files: read line by line from a gateway, and sent in parts that can each be checked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import yaml

from stratos.cli.declaration import MAX_WHOLE_BYTES, changes_text, declaration_parts, declaration_text
from stratos_gateway.http.row_stream import encoded_sections

TEXT = "two\nlines, a \u2028 and 'quotes': {}"
DOCUMENT: dict[str, Any] = {
    "policies": {},
    "templates": {"acme/greet": {"versions": {"1": {"text": TEXT}}}},
    "plans": {"gold": {"weight": 8, "models": ["*"], "content_policy": "safe"}, "on": {"weight": 1}},
    "tenants": {},
}


async def answer(document: dict[str, Any]) -> list[bytes]:
    parts: AsyncIterator[bytes] = encoded_sections({name: entries.items() for name, entries in document.items()})
    return b"".join([part async for part in parts]).split(b"\n")


@pytest.mark.parametrize("document", [DOCUMENT, {}, {name: {} for name in DOCUMENT}])
async def test_the_file_says_what_the_gateway_said(document: dict[str, Any]) -> None:
    assert yaml.safe_load("".join(declaration_text(await answer(document)))) == document


def test_an_older_gateway_says_it_in_one_line() -> None:
    line = json.dumps(DOCUMENT, ensure_ascii=False).encode()
    assert yaml.safe_load("".join(declaration_text([line]))) == DOCUMENT


async def test_a_file_is_written_while_it_is_read() -> None:
    document = {"tenants": {f"t{number}": {"plan": "gold"} for number in range(100)}}
    lines, num_read = await answer(document), 0

    def read() -> Iterator[bytes]:
        nonlocal num_read
        for line in lines:
            num_read += 1
            yield line

    written = declaration_text(read())
    assert [next(written) for _ in range(3)] == ["tenants:", "\n  t0:\n    plan: gold\n", "  t1:\n    plan: gold\n"]
    assert num_read == 3


@pytest.mark.parametrize("wanted", [DOCUMENT, {"tenants": []}, [], {"keys": {"k": "x" * MAX_WHOLE_BYTES}}])
def test_a_small_file_and_one_to_be_refused_go_as_they_are(wanted: Any) -> None:
    assert list(declaration_parts(wanted)) == [wanted]


def test_a_large_file_goes_in_parts_that_name_nothing_unknown() -> None:
    tenants = {
        f"t{number}": {"plan": "gold" if number % 2 else "standard", "overrides": {}} for number in range(40_000)
    }
    wanted = {"tenants": tenants, "plans": DOCUMENT["plans"], "policies": {"safe": {}, "other": {}}}
    parts = list(declaration_parts(wanted))
    assert len(parts) > 3
    assert max(len(json.dumps(part)) for part in parts) < MAX_WHOLE_BYTES
    assert list(parts[0]) == ["policies"]
    assert parts[1] == {"plans": DOCUMENT["plans"], "policies": {"safe": {}}}
    for part in parts[2:]:
        assert part["plans"] == {"gold": DOCUMENT["plans"]["gold"]}
        assert part["policies"] == {"safe": {}}
    assert {name: terms for part in parts for name, terms in part.get("tenants", {}).items()} == tenants


def test_a_change_that_two_parts_made_is_told_once() -> None:
    change = {"action": "create", "kind": "plan", "name": "gold", "changes": {}}
    assert changes_text([change, {**change, "name": "other"}, change]) == "create plan gold\ncreate plan other"
