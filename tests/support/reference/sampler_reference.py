"""An independent sampler reference: numpy, float64, one row at a time, every stage by its definition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from stratos.core.requests.sampling_params import SamplingParams

Floats = npt.NDArray[np.float64]


def edited(logits: Floats, params: SamplingParams, prompt: Sequence[int] = (), output: Sequence[int] = ()) -> Floats:
    """Logits after bias, penalties and bans; ``min_tokens`` needs end tokens and is left out."""
    row = logits.copy()
    for token, bias in params.logit_bias.items():
        row[token] += bias
    for token in {*prompt, *output}:
        row[token] *= params.repetition_penalty ** (-1 if row[token] > 0 else 1)
    for token in set(output):
        row[token] -= params.frequency_penalty * list(output).count(token) + params.presence_penalty
    for sequence in params.bad_sequences:
        *before, last = sequence
        if list(output[len(output) - len(before) :]) == before:
            row[last] = -np.inf
    if params.allowed_token_ids:
        row[[token for token in range(len(row)) if token not in params.allowed_token_ids]] = -np.inf
    return row


def distribution(row: Floats, params: SamplingParams) -> Floats:
    """Probabilities after temperature, min-p, top-k and top-p, in this order; ties share their fate."""
    scaled = row / params.temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    probs[probs < params.min_p * probs.max()] = 0
    if params.top_k and params.top_k < len(probs):
        probs[probs < np.sort(probs)[-params.top_k]] = 0
        probs /= probs.sum()
    if params.top_p < 1:
        probs /= probs.sum()
        ordered = np.sort(probs)[::-1]
        num_kept = 1 + int(np.argmax(np.cumsum(ordered) >= params.top_p))
        probs[probs < ordered[num_kept - 1]] = 0
    return probs / probs.sum()


def chi_square(drawn: npt.NDArray[np.int64], probs: Floats) -> float:
    """p-value of the draws; cells that expect less than 5 are put together."""
    counts = np.bincount(drawn, minlength=len(probs))
    if counts[probs == 0].any():
        return 0.0  # a token that has no probability at all
    expected = probs * len(drawn)
    is_rare = (expected < 5) & (expected > 0)
    is_common = expected >= 5
    observed = np.append(counts[is_common], counts[is_rare].sum())
    wanted = np.append(expected[is_common], expected[is_rare].sum())
    return float(stats.chisquare(observed[wanted > 0], wanted[wanted > 0]).pvalue)


def integral_transform(drawn: npt.NDArray[np.int64], probs: Floats, seed: int = 5) -> Floats:
    """Randomised probability-integral transform: uniform on [0, 1] if and only if the draws follow ``probs``."""
    upper = np.cumsum(probs)
    return upper[drawn] - probs[drawn] * np.random.default_rng(seed).random(len(drawn))


def ks_uniform(values: Floats) -> float:
    """p-value of the hypothesis that the values are uniform on [0, 1]."""
    return float(stats.kstest(values, "uniform").pvalue)
