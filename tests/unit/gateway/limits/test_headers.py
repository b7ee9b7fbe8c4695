"""Times and counts as clients of OpenAI and Anthropic read them."""

from __future__ import annotations

import pytest

from stratos.store.counters.leases import LeaseGrant
from stratos_gateway.limits.bucket import BucketTerms, LeasedBucket
from stratos_gateway.limits.claims import Claim
from stratos_gateway.limits.headers import dated_headers, duration, limit_headers
from stratos_gateway.limits.settings import LimitsConfig


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0ms"), (0.012, "12ms"), (0.9991, "1s"), (1.0, "1s"), (6.5, "6.5s"), (60.0, "1m0s"), (90.25, "1m30.25s"),
     (-1.0, "0ms"), (360.0, "6m0s")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_remains_is_the_slice_and_what_the_others_left() -> None:
    bucket = LeasedBucket("tokens:m:t", BucketTerms(capacity=600.0, rate_per_s=10.0), LimitsConfig(), 0.0)
    bucket.ask(0.0)
    bucket.grant(LeaseGrant(100.0, 150.5, 50.0), 0.0)
    standings, now_unix_s = [Claim("tokens", bucket, 1.0, 600).standing(1.0)], 1_767_225_570.2
    assert dict(limit_headers(standings)) == {
        b"x-ratelimit-limit-tokens": b"600",
        b"x-ratelimit-remaining-tokens": b"310",
        b"x-ratelimit-reset-tokens": b"28.95s",
    }
    assert dict(dated_headers("anthropic-ratelimit", standings, now_unix_s)) == {
        b"anthropic-ratelimit-tokens-limit": b"600",
        b"anthropic-ratelimit-tokens-remaining": b"310",
        b"anthropic-ratelimit-tokens-reset": b"2026-01-01T00:00:00Z",
    }
