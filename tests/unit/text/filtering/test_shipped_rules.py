"""What the shipped rules find and miss on the committed set; the document's table says the same."""

from __future__ import annotations

from collections import Counter

import pytest

from stratos.core.tenancy.content import ContentPolicy
from stratos.text.filtering.rules import Rules
from stratos.text.filtering.shipped_rules import SHIPPED_GROUPS
from tests.support.paths import ROOT

NOTHING = "-"


def read_lines() -> list[tuple[str, str]]:
    """(the rule that a person would name, the text)"""
    text = (ROOT / "tests" / "data" / "content_filter.tsv").read_text(encoding="utf-8")
    pairs = (line.split("\t") for line in text.splitlines() if line and not line.startswith("#"))
    return [(rule, text) for rule, text in pairs]


def group_of(rule: str) -> str:
    return rule.partition(".")[0]


def test_hits_and_misses_are_those_of_the_document() -> None:
    rules, lines = Rules.of(ContentPolicy(shipped=tuple(SHIPPED_GROUPS))), read_lines()
    assert len(lines) >= 300
    assert {rule for rule, _ in lines} == {*_all_rules(), NOTHING}
    right, wrong, missed = Counter[str](), Counter[str](), Counter[str]()
    for wanted, text in lines:
        hit = rules.first_hit(text)
        if wanted == NOTHING:
            wrong[group_of(hit.rule) if hit is not None else NOTHING] += 1
        else:
            (missed if hit is None else right)[group_of(wanted)] += 1
    document = (ROOT / "docs" / "tenants.md").read_text(encoding="utf-8")
    for name in (*SHIPPED_GROUPS, "all"):
        counts = [sum(found.values()) if name == "all" else found[name] for found in (right, wrong, missed)]
        if name == "all":
            counts[1] -= wrong[NOTHING]
        hits, false_hits, misses = counts
        precision, recall = hits / (hits + false_hits), hits / (hits + misses)
        row = f"| {name} | {hits} | {false_hits} | {misses} | {precision:.2f} | {recall:.2f} |"
        assert row in document, f"docs/tenants.md should have: {row}"


def _all_rules() -> set[str]:
    return {f"{name}.{rule}" for name, group in SHIPPED_GROUPS.items() for rule in (*group.words, *group.patterns)}


@pytest.mark.parametrize("name", SHIPPED_GROUPS)
def test_every_match_is_within_the_least_window_that_policies_have_by_default(name: str) -> None:
    """In a text that goes on, and in one that is as long as a match may be."""
    rules = Rules.of(ContentPolicy(shipped=(name,)))
    for wanted, text in read_lines():
        alone, within = rules.first_hit(text), rules.first_hit(f"{'lorem ' * 50}. {text} . {'ipsum ' * 50}")
        if group_of(wanted) == name and alone is not None:
            assert within is not None, text
