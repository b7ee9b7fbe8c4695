"""Paired differences with 95 % intervals: windows are resampled whole, since tokens of one window vary together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 2000
LOW_PERCENT, HIGH_PERCENT = 2.5, 97.5
MAX_NATS = 50.0
"""Natural log of a perplexity that no model has, whatever its vocabulary: larger losses are said to be this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure, and where it lies in 95 of 100 resamples."""

    value: float
    low: float
    high: float


def paired_mean(differences: np.ndarray, counts: np.ndarray, seed: int) -> Interval:
    """Mean difference per token.

    Args:
        differences: float [windows], summed over a window's tokens.
        counts: int [windows], tokens in each; windows without tokens say nothing.
        seed: of the resamples; equal ones give equal intervals.
    """
    used = counts > 0
    differences, counts = differences[used].astype(np.float64), counts[used].astype(np.float64)
    value = float(differences.sum() / counts.sum())
    if len(counts) < 2:  # one window alone: it could be anything
        return Interval(value=value, low=-math.inf, high=math.inf)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=NUM_RESAMPLES)
    means = (drawn @ differences) / (drawn @ counts)
    low, high = np.percentile(means, [LOW_PERCENT, HIGH_PERCENT])
    return Interval(value=value, low=float(low), high=float(high))


def as_relative(nats: Interval) -> Interval:
    """Relative growth of perplexity by a mean difference of log probabilities."""
    return Interval(value=_expm1(nats.value), low=_expm1(nats.low), high=_expm1(nats.high))


def _expm1(value: float) -> float:
    return value if value == math.inf else math.expm1(min(value, MAX_NATS))
