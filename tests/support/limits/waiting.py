"""Requests that wait for a bucket, without any limiter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stratos_gateway.limits.bucket import LeasedBucket
from stratos_gateway.limits.demand import PlaceInLine


class _WaitsOnly(PlaceInLine):
    """It takes nothing, ever."""

    def __init__(self, cost: float) -> None:
        self.cost = cost

    def is_held_up(self) -> bool:
        return False

    def serve(self, now: float) -> None: ...


@contextmanager
def waiting_for(bucket: LeasedBucket, cost: float) -> Iterator[None]:
    """A request waits."""
    request = _WaitsOnly(cost)
    bucket.demand.join(request)
    try:
        yield
    finally:
        bucket.demand.leave(request)
