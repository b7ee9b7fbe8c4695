"""The form of API keys."""

from __future__ import annotations

import pytest

from stratos.common.errors import InvalidApiKey
from stratos.store.keys import mint_key, parse_key


def test_a_key_has_its_form_and_no_two_are_equal() -> None:
    keys = {mint_key() for _ in range(100)}
    assert len(keys) == 100
    key = keys.pop()
    assert key.startswith("sk-")
    assert parse_key(key) == key[3:15]
    assert len(key) == 3 + 12 + 1 + 40


@pytest.mark.parametrize(
    "text",
    ["", "sk-", "sk-12-34", "SK-" + "a" * 12 + "-" + "b" * 40, "sk-" + "a" * 12 + "-" + "b" * 40 + "\n", "é" * 56],
)
def test_a_malformed_key_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(InvalidApiKey) as caught:
        parse_key(text)
    assert len(text) < 10 or text not in caught.value.message
