"""Prefix caches: one tenant asks a prompt that another one has asked before.

Each round has a prompt of its own and three requests: tenant one (computes it), tenant two (must compute it, too),
tenant one again (the control: it must hit, or the round says nothing).
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stratos.selfcheck.findings import Finding, fail, judged, ok, unknown
from stratos.selfcheck.isolation.callers import ProbeCaller, Timed

MAX_PROMPT_CHARS = 3000
MIN_RATIO = 1.3
"""A hit must be so much faster than a miss before times say anything."""
MIN_FAST_RATIO = 0.8
"""Tenant two must be nearer to a hit in so many rounds before that is a leak and no noise."""


@dataclass(frozen=True, slots=True)
class Round:
    """The answers to one prompt."""

    first: Timed
    other: Timed
    again: Timed


def probe_caches(one: ProbeCaller, two: ProbeCaller, model: str, num_chars: int, num_rounds: int) -> list[Round]:
    """Ask all rounds, one request at a time."""
    rounds = []
    for caller in (one, two):
        caller.complete(model, make_prompt(num_chars))  # connections, leases of limits, lazy set-up
    for _ in range(num_rounds):
        prompt = make_prompt(num_chars)
        first, other = one.complete(model, prompt), two.complete(model, prompt)
        rounds.append(Round(first, other, one.complete(model, prompt)))
    return rounds


def make_prompt(num_chars: int) -> str:
    """Text that was never asked before."""
    words = (secrets.token_hex(3) for _ in range(num_chars // 7))
    return " ".join(words)


def judge_counts(rounds: Sequence[Round]) -> Finding:
    """By the cached tokens that answers report."""
    check, num = "prefix cache, by cached tokens", len(rounds)
    leaks = [
        f"tenant two hit {r.other.num_cached_tokens} tokens of tenant one" for r in rounds if r.other.num_cached_tokens
    ]
    if leaks:
        return judged(check, leaks, "")
    num_hits = sum(r.again.num_cached_tokens > 0 for r in rounds)
    if not num_hits:
        return unknown(check, "no tenant hits its own prompts here, so nothing is shown")
    return ok(check, f"tenant one hit its own prompt {num_hits} times of {num}, tenant two never")


def judge_times(rounds: Sequence[Round]) -> Finding:
    """By the time to the first token: tenant two must be as slow as a tenant that has no cache."""
    check = "prefix cache, by time"
    miss, other, hit = (
        statistics.median(timed.ttft_s for timed in column)
        for column in zip(*((r.first, r.other, r.again) for r in rounds), strict=True)
    )
    figures = f"miss {miss * 1e3:.1f} ms, tenant two {other * 1e3:.1f} ms, hit {hit * 1e3:.1f} ms (medians)"
    if miss < MIN_RATIO * hit:
        return unknown(check, f"a hit is hardly faster than a miss, so times show nothing: {figures}")
    if other >= (miss + hit) / 2:
        return ok(check, figures)
    num_fast = sum(r.other.ttft_s < (r.first.ttft_s + r.again.ttft_s) / 2 for r in rounds)
    if num_fast < MIN_FAST_RATIO * len(rounds):
        return unknown(check, f"times differ too much from round to round: {figures}")
    return fail(check, f"tenant two is as fast as a hit: {figures}")
