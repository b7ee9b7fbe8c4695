"""The law of limits on recorded times: what chaos holds against a platform finds a platform that gives too much."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chaos.payers import BURST_S, LIMITS, Connection, Paid, beyond_limits

LIMIT = LIMITS["by-all"]
NUM_PROMPT, MAX_TOKENS = 5, 40


def requests(num: int, *, at_s: float, lasts_s: float, num_output: int) -> list[Paid]:
    """Requests that come together and have their first tokens at once."""
    usage = {"prompt_tokens": NUM_PROMPT, "completion_tokens": num_output}
    connections = [Connection(at_s + 0.01, at_s + 0.02)]
    more: dict[str, Any] = {"max_tokens": MAX_TOKENS, "usage": usage, "ended": at_s + lasts_s}
    return [Paid(f"r{n}", "x", at_s, connections=connections, **more) for n in range(num)]


def problems(*paid: Paid) -> list[str]:
    return beyond_limits({name: list(paid) if name == "by-all" else [] for name in LIMITS})


FITTING = int(LIMIT["tokens_per_min"] / 60 * BURST_S) // (NUM_PROMPT + MAX_TOKENS)
"""Requests that claim no more than the burst."""


def test_a_burst_is_within_the_law_and_one_request_more_is_not() -> None:
    for num, is_beyond in ((FITTING, False), (FITTING + 1, True)):
        found = problems(*requests(num, at_s=10.0, lasts_s=60.0, num_output=MAX_TOKENS))
        assert bool([text for text in found if "/s" in text]) is is_beyond, found


@pytest.mark.parametrize(("num_output", "is_beyond"), [(2, False), (MAX_TOKENS, True)])
def test_what_came_back_may_be_taken_again_and_what_was_used_may_not(num_output: int, is_beyond: bool) -> None:
    first = requests(FITTING, at_s=10.0, lasts_s=0.1, num_output=num_output)
    second = requests(FITTING - 1, at_s=10.2, lasts_s=60.0, num_output=MAX_TOKENS)
    assert bool(problems(*first, *second)) is is_beyond


def test_what_came_back_long_before_is_no_reason_for_more() -> None:
    first = requests(FITTING, at_s=10.0, lasts_s=0.1, num_output=0)
    second = requests(FITTING + 1, at_s=30.0, lasts_s=60.0, num_output=MAX_TOKENS)
    assert [text for text in problems(*first, *second) if "/s" in text]


def test_more_at_once_than_allowed_is_found() -> None:
    most = LIMIT["max_sequences"]
    assert not problems(*requests(most, at_s=10.0, lasts_s=1.0, num_output=2))
    assert [text for text in problems(*requests(most + 1, at_s=10.0, lasts_s=1.0, num_output=2)) if "open" in text]
