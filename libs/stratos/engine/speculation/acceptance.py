"""Meter of acceptance: how often drafts were right, by place, and what the two models' distributions allow.

A draft is accepted where the target draws the same token with the same noise.  With the total variation TV between the
two distributions at a place, that happens with a chance of at least (1 - TV) / (1 + TV); rejection sampling, which
keeps the distribution of a stream and not the stream, would accept 1 - TV.  The difference is the price of streams that
no draft changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stratos.engine.contract.results import DraftCount

GOOD, POOR = 0.7, 0.5
"""Acceptance above the first is good, below the second poor."""


@dataclass(frozen=True, slots=True)
class AcceptanceRate:
    """Acceptance of some drafts."""

    drafted: tuple[int, ...]
    """Tokens by place in their draft, the first place first."""
    accepted: tuple[int, ...]
    same_noise: float | None
    """Mean of (1 - TV) / (1 + TV), below which drafts that a model draws with the same noise do not fall."""
    rejection: float | None
    """Mean of 1 - TV, of rejection sampling; both are ``None`` where no distributions were given."""

    @property
    def rate(self) -> float:
        """Accepted part of the tokens whose place in the stream was reached, which is what a model can be judged by."""
        reached = self.drafted[:1] + tuple(
            min(before, now) for before, now in zip(self.accepted, self.drafted[1:], strict=False)
        )
        return sum(self.accepted) / max(1, sum(reached))

    @property
    def by_place(self) -> tuple[float, ...]:
        """Accepted part of the drafted tokens at each place."""
        return tuple(own / all_ for own, all_ in zip(self.accepted, self.drafted, strict=True))

    @property
    def verdict(self) -> str:
        """One word for people: "good", "fair" or "poor"."""
        if self.rate > GOOD:
            return "good"
        return "poor" if self.rate < POOR else "fair"


def measure_acceptance_rate(counts: Iterable[DraftCount], variations: Sequence[float] = ()) -> AcceptanceRate:
    """Acceptance of drafts.

    Args:
        counts: of drafted rows, of one method, adapter or task, whatever is asked for.
        variations: total variation of target and draft model at places of the same streams.
    """
    rows = [count for count in counts if count.num_drafted]
    num_places = max((count.num_drafted for count in rows), default=0)
    return AcceptanceRate(
        drafted=tuple(sum(count.num_drafted > place for count in rows) for place in range(num_places)),
        accepted=tuple(sum(count.num_accepted > place for count in rows) for place in range(num_places)),
        same_noise=float(np.mean([(1 - tv) / (1 + tv) for tv in variations])) if variations else None,
        rejection=float(np.mean([1 - tv for tv in variations])) if variations else None,
    )


def total_variation(target: npt.ArrayLike, draft: npt.ArrayLike) -> float:
    """Half of the sum of differences of two distributions [vocabulary]: 0 is equal, 1 has nothing in common."""
    return float(0.5 * np.abs(np.asarray(target, dtype=np.float64) - np.asarray(draft, dtype=np.float64)).sum())
