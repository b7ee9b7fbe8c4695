"""A tenant's limits as clients read them: ``x-ratelimit-*`` of OpenAI, and those of Anthropic beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from stratos.common.changed import record

Headers = list[tuple[bytes, bytes]]


@record(frozen=True, slots=True, kw_only=False)
class LimitStanding:
    """One limit at one moment."""

    kind: str
    """"requests" or "tokens"."""
    limit_per_min: int
    remaining: float
    reset_s: float
    """Seconds until all of it is there again."""


def limit_headers(standings: Sequence[LimitStanding]) -> Headers:
    """Headers of OpenAI, whose times are durations."""
    return [
        (f"x-ratelimit-{name}-{one.kind}".encode(), value.encode())
        for one in standings
        for name, value in (*_counts(one), ("reset", duration(one.reset_s)))
    ]


def dated_headers(prefix: str, standings: Sequence[LimitStanding], now_unix_s: float) -> Headers:
    """Headers whose names begin like this, as Anthropic has them: times are dates, in whole seconds, rounded up."""
    return [
        (f"{prefix}-{one.kind}-{name}".encode(), value.encode())
        for one in standings
        for name, value in (*_counts(one), ("reset", _date(now_unix_s + one.reset_s)))
    ]


def _counts(one: LimitStanding) -> tuple[tuple[str, str], ...]:
    return ("limit", str(one.limit_per_min)), ("remaining", str(math.floor(one.remaining)))


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(math.ceil(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    """A time as OpenAI writes it: ``12ms``, ``6.5s``, ``1m30s``."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{text}s" if minutes else f"{text}s"
