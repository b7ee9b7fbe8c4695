"""Rules of the model ``auto`` as JSON: every form that is none is refused by its place."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.store.models.choice_forms import MAX_RULES, choice_from_json, choice_to_json, words_of
from stratos.store.records.record import Kind, make_body, parse_record

CODE = {"name": "code", "keywords": ["Stack trace", "python"], "needs": ["tools"], "at_least": 0.5}
RULES: dict[str, Any] = {
    "default": "small",
    "rules": [CODE, {"name": "long", "min_chars": 4000, "models": ["big"]}],
    "scores": {"code": {"small": 0.4, "big": 0.8, "huge": 0.5}},
}


def test_rules_come_back_from_their_record_as_they_were() -> None:
    made = choice_from_json("acme/auto", RULES)
    assert parse_record(Kind.CHOICE, "acme/auto", f"7 {make_body(choice_to_json(made))}").value == made
    assert choice_to_json(made) == RULES


def test_models_that_are_good_enough_come_from_the_rule_or_the_scores() -> None:
    made = choice_from_json("auto", RULES)
    assert [made.adequate(rule) for rule in made.rules] == [["big", "huge"], ["big"]]
    assert made.models == {"small", "big", "huge"}


def test_keywords_are_whole_words_whatever_is_between_them() -> None:
    words = words_of("A Python-Stack\n(trace): pythons")
    assert [words_of(word) in words for word in ("python", "STACK trace", "tra", "python trace")] == [
        True, True, False, False,
    ]  # fmt: skip


def changed(**rule: Any) -> dict[str, Any]:
    return {**RULES, "rules": [{**CODE, **rule}]}


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([], "rules"),
        ({"rules": []}, "default"),
        ({**RULES, "unknown": 1}, "unknown"),
        ({**RULES, "default": "auto"}, "rules"),
        ({**RULES, "rules": [CODE, CODE]}, "rules"),
        ({**RULES, "rules": [{**CODE, "name": f"r{n}"} for n in range(MAX_RULES + 1)]}, "rules"),
        ({**RULES, "scores": {"code": {"big": 1.5}}}, "scores.code.big"),
        ({**RULES, "scores": {str(n): {} for n in range(65)}}, "scores"),
        (changed(name="No Name"), "rules.0.name"),
        (changed(keywords=["!?"]), "rules.0.keywords"),
        (changed(min_chars=9, max_chars=8), "rules.0.max_chars"),
        (changed(needs=["poetry"]), "rules.0.needs.0"),
        (changed(task="poetry"), "rules.0.at_least"),
        (changed(at_least=0.9), "rules.0.models"),
        (changed(at_least=0.1, models=["unknown"]), "rules.0.models"),
        (changed(at_least=None, models=[str(n) for n in range(9)]), "rules.0.models"),
    ],
)
def test_what_are_no_rules_is_refused_by_its_place(value: Any, param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        choice_from_json("auto", value)
    assert refusal.value.param == param, refusal.value.message


@pytest.mark.parametrize("record_id", ["", "smart", "/auto", "acme/smart"])
def test_rules_have_no_other_name(record_id: str) -> None:
    with pytest.raises(BadRequest):
        choice_from_json(record_id, RULES)
