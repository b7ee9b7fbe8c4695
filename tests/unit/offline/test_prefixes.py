"""Order of lines by their prefixes."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import orjson
import pytest

from stratos_gateway.batches.prefixes import KEY_BYTES, prefix_key
from stratos_offline.prefixes import prefix_order

LONG = "You answer questions about one book. " * 60


def order_of(bodies: list[dict[str, Any]]) -> list[int]:
    return [int(number) for number in prefix_order(b"".join(map(prefix_key, bodies)))]


def chat(system: str, text: str, model: str = "base") -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
    }


def test_lines_that_begin_alike_are_neighbours() -> None:
    bodies = [chat(LONG + str(place % 5), f"line {place}") for place in range(200)]
    random.Random(1).shuffle(bodies)
    systems = [bodies[number]["messages"][0]["content"] for number in order_of(bodies)]
    assert sum(one != two for one, two in pairwise(systems)) == 4


def test_texts_that_end_in_a_line_of_their_own_are_neighbours_as_well() -> None:
    heads = [f"{LONG}\n\nSheet {number}\n" for number in range(5)]
    bodies = [{"model": "base", "prompt": f"{heads[place % 5]}Question {place}"} for place in range(100)]
    sheets = [number % 5 for number in order_of(bodies)]
    assert sum(one != two for one, two in pairwise(sheets)) == 4


def test_those_that_share_more_are_nearer() -> None:
    """Two of three books share their first 1,000 characters."""
    heads = ["a" * 1100 + "b" * 3100, "z" * 4200, "a" * 1100 + "c" * 3100]
    bodies = [chat(heads[place % 3], f"line {place}") for place in range(30)]
    kinds = [number % 3 for number in order_of(bodies)]
    blocks = [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind]
    assert blocks in ([0, 2, 1], [2, 0, 1], [1, 0, 2], [1, 2, 0])


@pytest.mark.parametrize("names", [("query", "documents"), ("text_1", "text_2"), ("queries", "documents")])
def test_pairs_of_one_query_are_neighbours(names: tuple[str, str]) -> None:
    bodies = [{"model": "base", names[0]: f"query {place % 5}", names[1]: [f"{place}"]} for place in range(50)]
    queries = [number % 5 for number in order_of(bodies)]
    assert sum(one != two for one, two in pairwise(queries)) == 4


def test_lines_of_one_key_keep_their_order() -> None:
    assert order_of([chat("same", "same")] * 50) == list(range(50))


@pytest.mark.parametrize("body", [{}, {"prompt": [1, 2]}, {"input": ["a", "b"]}, chat("s", "t"), {"model": "\ud800"}])
def test_a_key_has_one_size(body: dict[str, Any]) -> None:
    assert len(prefix_key(body)) == KEY_BYTES


def test_models_are_apart() -> None:
    bodies = [chat("same", "same", model="ab"[place % 2]) for place in range(10)]
    assert len({number % 2 for number in order_of(bodies)[:5]}) == 1


def test_a_body_that_is_nested_very_deep_has_a_key() -> None:
    """JSON is read down to 1,024 levels and written down to 254."""
    body = orjson.loads(b'{"messages":' + b"[" * 500 + b"]" * 500 + b"}")
    assert len(prefix_key(body)) == KEY_BYTES
