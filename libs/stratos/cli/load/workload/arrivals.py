"""Arrival processes: when requests come, in seconds after the beginning of a run.

An open loop sends at these times however slow the server is, as users do who do not know of one another.  A closed loop
sends when an earlier answer has ended: it slows down with the server, so it measures throughput and hides queueing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from stratos.common.errors import BadRequest

FORMS = "closed:STREAMS, poisson:RATE, gamma:RATE,CV, burst:SIZE,PERIOD_S or trace:FILE"


CONSTANT_CV = 1e-3
"""Below it gaps are equal: the shape of a gamma distribution grows without bound."""


class Arrivals(Protocol):
    """An open loop."""

    def times(self, rng: Random) -> Iterator[float]:
        """Seconds of all arrivals, ascending, without end."""
        ...


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many streams at once: each sends its next request when its last answer has ended."""

    num_streams: int


@dataclass(frozen=True, slots=True)
class TraceArrivals:
    """A file says when each request comes, and how long it is."""

    path: Path


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Independent gaps of a gamma distribution.

    The shape of a gamma distribution is 1 / CV^2: CV 1 is a Poisson process, 0 a constant pace, above 1 arrivals come
    in clusters with pauses between them.
    """

    rate_per_s: float
    cv: float = 1.0
    """Standard deviation of the gaps over their mean."""

    def times(self, rng: Random) -> Iterator[float]:
        """Seconds of all arrivals, ascending, without end."""
        return itertools.accumulate(self._gap_s(rng) for _ in itertools.count())

    def _gap_s(self, rng: Random) -> float:
        if self.cv < CONSTANT_CV:
            return 1 / self.rate_per_s
        if self.cv == 1:
            return rng.expovariate(self.rate_per_s)
        return rng.gammavariate(1 / self.cv**2, self.cv**2 / self.rate_per_s)


@dataclass(frozen=True, slots=True)
class BurstArrivals:
    """So many requests at one moment, again after each period; the first ones at once."""

    size: int
    period_s: float

    def times(self, rng: Random) -> Iterator[float]:
        """Seconds of all arrivals, ascending, without end."""
        return (burst * self.period_s for burst in itertools.count() for _ in range(self.size))


def parse_arrivals(text: str) -> ClosedLoop | TraceArrivals | GammaArrivals | BurstArrivals:
    """Read ``--arrivals``.

    Raises:
        BadRequest: it has none of the forms, or a number that makes no sense.
    """
    kind, _, rest = text.partition(":")
    if kind == "trace" and rest:
        return TraceArrivals(Path(rest))
    numbers = _numbers(text, rest)
    match kind, numbers:
        case "closed", [streams] if streams >= 1 and streams == int(streams):
            return ClosedLoop(int(streams))
        case "poisson", [rate] if rate > 0:
            return GammaArrivals(rate)
        case "gamma", [rate, cv] if rate > 0 and cv >= 0:
            return GammaArrivals(rate, cv)
        case "burst", [size, period_s] if size >= 1 and size == int(size) and period_s > 0:
            return BurstArrivals(int(size), period_s)
    raise _refused(text)


def _numbers(text: str, rest: str) -> list[float]:
    try:
        found = [float(number) for number in rest.split(",")]
    except ValueError:
        raise _refused(text) from None
    if not all(map(math.isfinite, found)):
        raise _refused(text)
    return found


def _refused(text: str) -> BadRequest:
    return BadRequest(f"--arrivals must be {FORMS}, not {text!r}", param="--arrivals")
