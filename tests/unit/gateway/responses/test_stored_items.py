"""Items as they are kept: in their full form, each with an id, and nothing beside what the API has."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import ResponseItemList

from stratos.common.errors import BadRequest
from stratos_gateway.responses.items import check_input
from stratos_gateway.responses.stored_items import stored_items

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
    {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "r"}]},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "status": None, "id": None},
    {"type": "function_call_output", "call_id": "a", "output": "sunny", "odd": [1] * 1000, "id": "x" * 1000},
]


def test_kept_items_are_those_of_the_api_and_read_as_before() -> None:
    kept = stored_items(ITEMS)
    listed = {"object": "list", "data": kept, "first_id": "a", "last_id": "b", "has_more": False}
    ResponseItemList.model_validate(listed)
    assert check_input(kept) == check_input(ITEMS)
    assert len({item["id"] for item in kept}) == len(ITEMS)
    assert kept[3]["id"] == "rs_1"
    assert all(item["status"] == "completed" for item in kept)
    assert "odd" not in kept[5]
    assert len(kept[5]["id"]) < 100


def test_a_text_is_kept_as_a_message() -> None:
    [item] = stored_items("hi")
    assert (item["type"], item["role"], item["content"]) == ("message", "user", [{"type": "input_text", "text": "hi"}])


def test_items_that_no_store_could_write_are_refused_before_anything_is_computed() -> None:
    odd: Any = 1
    for _ in range(300):
        odd = [odd]
    with pytest.raises(BadRequest, match="254 levels"):
        stored_items([{"role": "user", "content": [{"type": "input_text", "text": "x", "odd": odd}]}])
