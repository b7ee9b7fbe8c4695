"""All rules that a text breaks, however their hits lie to one another."""

from __future__ import annotations

import pytest

from stratos.text.filtering.rules import Rules

WORDS = {"foul": ("bad stuff",), "vile": ("stuff",)}
RULES = Rules(WORDS, {"digits": "[0-9]{6}", "even": "[02468]{2}", "word": "stuff$"}, 16)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("", set()),
        ("all is well", set()),
        ("some bad  stuff and 135797", {"foul", "vile", "digits"}),
        ("135797 and then bad stuff", {"digits", "foul", "vile", "word"}),
        ("135224 stuffing", {"digits", "even"}),
        ("x " * 20_000 + "24 stuff", {"even", "vile", "word"}),
    ],
)
def test_each_rule_is_found_by_itself(text: str, rules: set[str]) -> None:
    assert RULES.rules_hit(text) == rules
    assert set(RULES.names) == {"foul", "vile", "digits", "even", "word"}
