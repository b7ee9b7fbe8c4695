"""Limits as OpenAI's clients read them: ``x-ratelimit-*``."""

from __future__ import annotations

import math

from stratos_gateway.limits.bucket import LeasedBucket


def limit_headers(kind: str, limit_per_min: int, bucket: LeasedBucket, now: float) -> list[tuple[bytes, bytes]]:
    """``x-ratelimit-*`` of one limit; kind is "requests" or "tokens"."""
    remaining = max(0.0, bucket.remaining(now))
    reset_s = (bucket.terms.capacity - remaining) / bucket.terms.rate_per_s
    values = {"limit": str(limit_per_min), "remaining": str(math.floor(remaining)), "reset": duration(reset_s)}
    return [(f"x-ratelimit-{name}-{kind}".encode(), value.encode()) for name, value in values.items()]


def duration(seconds: float) -> str:
    """A time as OpenAI writes it: ``12ms``, ``6.5s``, ``1m30s``."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{text}s" if minutes else f"{text}s"
