"""The form of API keys."""

from __future__ import annotations

import pytest

from stratos.common.errors import BadRequest, InvalidApiKey
from stratos.store.keys import check_networks, check_new_patterns, check_patterns, mint_key, parse_key, with_checksum


def test_a_key_has_its_form_and_no_two_are_equal() -> None:
    keys = {mint_key() for _ in range(100)}
    assert len(keys) == 100
    key = keys.pop()
    assert key.startswith("sk-")
    assert parse_key(key) == key[3:15]
    assert len(key) == 3 + 12 + 1 + 40 + 1 + 8


@pytest.mark.parametrize(
    "text",
    ["", "sk-", "sk-12-34", "SK-" + "a" * 12 + "-" + "b" * 40, "sk-" + "a" * 12 + "-" + "b" * 40 + "\n", "é" * 56],
)
def test_a_malformed_key_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(InvalidApiKey) as caught:
        parse_key(text)
    assert len(text) < 10 or text not in caught.value.message


def test_one_wrong_character_anywhere_is_seen_by_the_checksum() -> None:
    key = mint_key()
    for place in range(3, len(key)):
        if key[place] != "-":
            mistyped = key[:place] + ("0" if key[place] != "0" else "1") + key[place + 1 :]
            with pytest.raises(InvalidApiKey):
                parse_key(mistyped)
    assert parse_key(with_checksum(key.rpartition("-")[0])) == parse_key(key)


@pytest.mark.parametrize("networks", ["10.0.0.0/8", ["10.0.0.1/8"], ["nonsense"], [1], ["10.0.0.1"] * 65, None])
def test_networks_are_checked(networks: object) -> None:
    with pytest.raises(BadRequest) as caught:
        check_networks(networks)
    assert caught.value.param == "networks"


@pytest.mark.parametrize("names", [["m"] * 17, ["a*b*c*"], ["a?"], ["[ab]"], ["m", 1], "m", ["x" * 257]])
def test_a_new_key_has_few_patterns_and_they_are_simple(names: object) -> None:
    with pytest.raises(BadRequest) as caught:
        check_new_patterns(names)
    assert caught.value.param == "models"


def test_what_a_key_of_an_older_version_has_is_still_read() -> None:
    assert len(check_patterns(["a*b*c*", "[ab]?"] * 100)) == 200
    assert check_new_patterns(["*", "acme-*-*", "base"]) == ("*", "acme-*-*", "base")
