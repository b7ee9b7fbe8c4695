"""Lengths of sequences as published examples have them."""

from __future__ import annotations

import math
from random import Random

MEDIAN_TOKENS, CONTEXT_TOKENS = 847, 4096
"""Median of a request's tokens, and the context that was reserved for each, in the published example."""


def log_normal_lengths(count: int, sigma: float, rng: Random, *, median: int = MEDIAN_TOKENS, most: int) -> list[int]:
    """Log-normal lengths, at least 1, cut at ``most``; ``sigma`` is the standard deviation of the logarithm."""
    lengths = (rng.lognormvariate(math.log(median), sigma) for _ in range(count))
    return [max(1, min(round(length), most)) for length in lengths]


def mean_of_log_normal(sigma: float, *, median: int = MEDIAN_TOKENS, most: int = CONTEXT_TOKENS) -> float:
    """Mean of such lengths in closed form.

    With m the median, c the cut and z = ln(c / m) / sigma, it is
    m * exp(sigma^2 / 2) * Phi(z - sigma) + c * (1 - Phi(z)): below the cut the mean of the part, above it the cut.
    """
    z = math.log(most / median) / sigma
    return median * math.exp(sigma**2 / 2) * _normal_share(z - sigma) + most * (1 - _normal_share(z))


def _normal_share(z: float) -> float:
    """Share of a normal distribution below ``z``."""
    return (1 + math.erf(z / math.sqrt(2))) / 2
