"""Chi-square and Kolmogorov-Smirnov tests of the noise and of every sampler path, and of their power.

Seeds are fixed, so a result never changes by itself.  A path is refused below ``SIGNIFICANCE``; a planted bias must
come out below ``PLANTED``, far beyond it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import SampleSpec
from stratos.engine.sampling import filters
from stratos.engine.sampling import sampler as sampler_module
from stratos.engine.sampling.counter_rng import gumbel, hashes, noise_keys
from stratos.engine.sampling.filters import Kept, keep_top
from stratos.engine.sampling.sampler import Sampler
from tests.support.examples import IS_THOROUGH
from tests.support.reference.sampler_reference import chi_square, distribution, edited, integral_transform, ks_uniform

CPU = torch.device("cpu")
VOCAB, DRAWS = 48, 8_000
EDITED_DRAWS = DRAWS if IS_THOROUGH else 3_000
"""Of paths whose logits are edited, which costs most and is no matter of chance: what follows has paths of its own."""
SIGNIFICANCE, PLANTED = 1e-3, 1e-9
PROMPT, OUTPUT = (3, 5, 5), (8, 8, 8, 11, 40)
PATHS = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.4),
    "hot": SamplingParams(temperature=1.9),
    "top-k": SamplingParams(top_k=6),
    "top-k of all": SamplingParams(top_k=VOCAB),
    "top-p": SamplingParams(top_p=0.7),
    "min-p": SamplingParams(min_p=0.08),
    "all filters": SamplingParams(temperature=1.6, min_p=0.02, top_k=14, top_p=0.85),
    "bias": SamplingParams(logit_bias={2: 3.0, 7: -100.0, 40: 1.5}),
    "penalties": SamplingParams(repetition_penalty=1.6, frequency_penalty=0.5, presence_penalty=0.7),
    "negative penalties": SamplingParams(repetition_penalty=0.7, frequency_penalty=-0.4, presence_penalty=-0.3),
    "allowed": SamplingParams(allowed_token_ids=(1, 5, 9, 33), temperature=1.4),
    "bad": SamplingParams(bad_sequences=((4,), (11, 40, 6), (8, 40, 7), (40, 2))),
    "everything": SamplingParams(
        temperature=1.3, min_p=0.01, top_k=20, top_p=0.93, repetition_penalty=1.2, presence_penalty=0.2,
        logit_bias={3: 2.0}, bad_sequences=((0,), (40, 1)), allowed_token_ids=tuple(range(0, VOCAB, 2)),
    ),
}  # fmt: skip
EDITED = ("bias", "penalties", "negative penalties", "allowed", "bad", "everything")


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def draws(params: SamplingParams, row: torch.Tensor, num_draws: int = DRAWS, **varied: int) -> np.ndarray:
    """Tokens of ``num_draws`` places; by default the position varies."""
    specs = [
        SampleSpec(
            key=RequestKey("r", 0), choice=0, seed=11, position=place, params=params, prompt_ids=PROMPT,
            output_ids=OUTPUT, num_output_tokens=len(OUTPUT),
        )
        for place in range(num_draws)
    ]  # fmt: skip
    if varied:
        specs = [replace(s, position=9, **{name: s.position * step for name, step in varied.items()}) for s in specs]
    tokens = []
    for begin in range(0, num_draws, 2000):
        part = specs[begin : begin + 2000]
        tokens += Sampler((0, 4), VOCAB, CPU).sample(row.expand(len(part), -1), part).token_ids
    return np.array(tokens)


def p_values(params: SamplingParams, num_draws: int = DRAWS, **varied: int) -> tuple[float, float]:
    row = logits()
    probs = distribution(edited(row.double().numpy(), params, PROMPT, OUTPUT), params)
    drawn = draws(params, row, num_draws, **varied)
    return chi_square(drawn, probs), ks_uniform(integral_transform(drawn, probs))


# -- the noise -----------------------------------------------------------------------------------------


def uniforms(places: list[tuple[int, int, int]], num_tokens: int) -> np.ndarray:
    words = hashes(noise_keys(places, CPU), torch.arange(num_tokens, dtype=torch.int32))
    return (np.asarray(words.to(torch.int64) & 0xFFFFFFFF, dtype=np.float64) + 0.5) / 2**32


SWEEPS: dict[str, tuple[list[tuple[int, int, int]], int]] = {
    "tokens": ([(7, 0, 3)], 20_000),
    "positions": ([(7, 0, p) for p in range(4000)], 5),
    "seeds": ([(s, 0, 3) for s in range(4000)], 5),
    "choices": ([(7, c, 3) for c in range(4000)], 5),
    "high bits of the seed": ([(s << 48, 0, 3) for s in range(4000)], 5),
}


@pytest.mark.parametrize("sweep", SWEEPS)
def test_uniforms_are_uniform_and_noise_is_gumbel(sweep: str) -> None:
    places, num_tokens = SWEEPS[sweep]
    assert ks_uniform(uniforms(places, num_tokens).ravel()) > SIGNIFICANCE
    noise = gumbel(noise_keys(places, CPU), torch.arange(num_tokens, dtype=torch.int32)).numpy().ravel()
    assert stats.kstest(noise, "gumbel_r").pvalue > SIGNIFICANCE


@pytest.mark.parametrize("step", [(0, 1), (1, 0), (1, 1)])
def test_neighbours_in_position_and_token_are_independent(step: tuple[int, int]) -> None:
    grid = uniforms([(7, 0, p) for p in range(300)], 300)
    rows, columns = step
    first, second = grid[: 300 - rows, : 300 - columns].ravel(), grid[rows:, columns:].ravel()
    cells = np.histogram2d(first, second, bins=8, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.ravel()).pvalue > SIGNIFICANCE
    assert abs(stats.spearmanr(first, second).statistic) < 0.02


# -- the paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_every_path_follows_the_reference(path: str) -> None:
    assert min(p_values(PATHS[path], EDITED_DRAWS if path in EDITED else DRAWS)) > SIGNIFICANCE


@pytest.mark.parametrize("varied", [{"seed": 1}, {"seed": 1 << 32}, {"choice": 1}])
def test_draws_over_seeds_and_choices_follow_the_reference(varied: dict[str, int]) -> None:
    assert min(p_values(PATHS["all filters"], **varied)) > SIGNIFICANCE


# -- what the tests would notice -----------------------------------------------------------------------


def one_more(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, num_candidates: int) -> Kept:
    return keep_top(logits, top_k + 1, top_p, num_candidates)


def one_less(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, num_candidates: int) -> Kept:
    return keep_top(logits, top_k - 1, top_p, num_candidates)


def looser(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, num_candidates: int) -> Kept:
    return keep_top(logits, top_k, (top_p + 0.05).clamp(max=1), num_candidates)


@pytest.mark.parametrize(
    ("path", "wrong"), [("top-k", one_more), ("top-k", one_less), ("top-p", looser), ("all filters", one_more)]
)
def test_a_wrong_truncation_is_noticed(path: str, wrong: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "keep_top", wrong)
    assert p_values(PATHS[path])[0] < PLANTED


def test_temperature_after_truncation_is_noticed() -> None:
    params, row = PATHS["all filters"], logits()
    cold = distribution(row.double().numpy(), replace(params, temperature=1.0))
    wrong = np.where(cold > 0, row.double().numpy() / params.temperature, -np.inf)
    probs = np.exp(wrong - wrong.max())
    assert chi_square(draws(params, row), probs / probs.sum()) < PLANTED


def test_a_temperature_off_by_a_tenth_is_noticed_by_both_tests() -> None:
    row = logits()
    drawn = draws(SamplingParams(temperature=1.0), row)
    probs = distribution(row.double().numpy(), SamplingParams(temperature=1.1))
    assert chi_square(drawn, probs) < PLANTED
    assert ks_uniform(integral_transform(drawn, probs)) < 1e-4  # one number per draw: it has less power


def test_noise_that_is_not_gumbel_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def uniform_noise(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return gumbel(keys, token_ids).neg().exp().neg().exp()

    monkeypatch.setattr(sampler_module, "gumbel", uniform_noise)
    assert max(p_values(PATHS["plain"])) < PLANTED


def test_noise_that_is_shared_by_two_tokens_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "gumbel", lambda keys, token_ids: gumbel(keys, token_ids // 2))
    assert p_values(PATHS["plain"])[0] < PLANTED
