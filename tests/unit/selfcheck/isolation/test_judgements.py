"""Judgements on isolation from measured requests."""

from __future__ import annotations

import pytest

from stratos.selfcheck.findings import Level, judged, lines
from stratos.selfcheck.isolation.cache_probe import Round, judge_counts, judge_times, make_prompt
from stratos.selfcheck.isolation.callers import Timed

OK, FAILED, UNKNOWN = Level.OK, Level.FAIL, Level.UNKNOWN


def rounds(*, other_ms: list[float], hit_ms: float = 10.0, miss_ms: float = 40.0) -> list[Round]:
    return [
        Round(Timed(miss_ms / 1e3, 0, 300), Timed(o / 1e3, 0, 300), Timed(hit_ms / 1e3, 256, 300)) for o in other_ms
    ]


@pytest.mark.parametrize(
    ("other_ms", "level"),
    [
        ([40.0] * 5, OK),
        ([10.0] * 5, FAILED),
        ([40.0, 9.0, 41.0, 39.0, 8.0], OK),
        ([9.0, 40.0, 10.0, 11.0, 12.0], FAILED),
        ([9.0, 40.0, 10.0, 11.0, 90.0], UNKNOWN),
    ],
)
def test_another_tenant_must_be_as_slow_as_a_miss(other_ms: list[float], level: Level) -> None:
    assert judge_times(rounds(other_ms=other_ms)).level is level


def test_times_say_nothing_where_a_hit_is_not_faster() -> None:
    assert judge_times(rounds(other_ms=[40.0] * 3, hit_ms=38.0)).level is UNKNOWN


@pytest.mark.parametrize(
    ("other", "again", "level"),
    [([0, 0], [256, 256], OK), ([0, 0], [0, 256], OK), ([0, 16], [256, 256], FAILED), ([0, 0], [0, 0], UNKNOWN)],
)
def test_one_cached_token_of_another_tenant_is_one_too_many(other: list[int], again: list[int], level: Level) -> None:
    found = [Round(Timed(1, 0, 300), Timed(1, o, 300), Timed(1, a, 300)) for o, a in zip(other, again, strict=True)]
    assert judge_counts(found).level is level


def test_prompts_never_repeat_and_findings_show_the_first_problems() -> None:
    assert make_prompt(100) != make_prompt(100)
    assert 90 <= len(make_prompt(100)) <= 100
    assert lines([judged("x", [], "fine")]) == "ok       x: fine"
    assert lines([judged("x", ["a"], "")]) == "FAILED   x: a"
    assert judged("x", "abcde", "").text == "a; b; c (and 2 more)"
