"""The sampler against a float64 reference, and the promises about single rows."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from stratos.core.requests.limits import LIMITS, LOGIT_BIAS_LIMIT
from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import ALL_BANNED, NON_FINITE, SampleSpec
from stratos.engine.sampling.logits_processors import apply_changes, row_changes
from stratos.engine.sampling.sampler import Sampler
from tests.support.reference.sampler_reference import edited

VOCAB = 40
EOS = (0, 4)
DRAWS = 6000
KEY = RequestKey("r", 0)


def spec(params: SamplingParams, *, seed: int = 1, position: int = 9, **fields: Any) -> SampleSpec:
    defaults: dict[str, Any] = {"prompt_ids": (), "output_ids": (), "num_output_tokens": 0, "choice": 0}
    return SampleSpec(key=KEY, seed=seed, position=position, params=params, **{**defaults, **fields})


def sampler(vocab: int = VOCAB) -> Sampler:
    return Sampler(EOS, vocab, torch.device("cpu"))


def logits(rows: int = 1, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def reference_distribution(row: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """Sorting, in float64, one row at a time: min-p, then top-k, then top-p."""
    scaled = row.double().numpy() / params.temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    probs[probs < params.min_p * probs.max()] = 0
    order = np.argsort(-probs, kind="stable")
    if params.top_k:
        probs[order[params.top_k :]] = 0
    probs /= probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= params.top_p]] = 0
    return probs / probs.sum()


def chi_square_p_value(statistic: float, freedom: int) -> float:
    """Upper tail by the Wilson-Hilferty normal approximation."""
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def draw_counts(row: torch.Tensor, params: SamplingParams) -> np.ndarray:
    specs = [spec(params, position=position) for position in range(DRAWS)]
    drawn = sampler(row.shape[-1]).sample(row.expand(DRAWS, -1), specs).token_ids
    return np.bincount(drawn, minlength=row.shape[-1])


def p_value(counts: np.ndarray, probs: np.ndarray) -> float:
    assert not counts[probs == 0].any(), "a token outside of the truncated set was sampled"
    rest = (probs * DRAWS < 5) & (probs > 0)
    big = probs * DRAWS >= 5
    observed = np.append(counts[big], counts[rest].sum()).astype(float)
    expected = np.append(probs[big], probs[rest].sum()) * DRAWS
    observed, expected = observed[expected > 0], expected[expected > 0]
    return chi_square_p_value(float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=1.7),
        SamplingParams(top_k=7),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=1.3, min_p=0.02, top_k=12, top_p=0.9),
    ],
)
def test_tokens_follow_the_reference_distribution(params: SamplingParams) -> None:
    row = logits()
    probs = reference_distribution(row[0], params)
    assert p_value(draw_counts(row, params), probs) > 1e-4


def test_the_chi_square_test_can_fail() -> None:
    row = logits()
    wrong = reference_distribution(row[0], SamplingParams(temperature=1.1))
    assert p_value(draw_counts(row, SamplingParams()), wrong) < 1e-6


@pytest.mark.parametrize("top_p", [0.3, 0.95, 0.9999])
@pytest.mark.parametrize("top_k", [0, 1500])
def test_long_candidate_lists_give_the_reference_set(top_p: float, top_k: int) -> None:
    row = logits(vocab=3000) / 8  # flat: the kept set outgrows the first candidates
    params = SamplingParams(top_p=top_p, top_k=top_k)
    allowed = reference_distribution(row[0], params) > 0
    drawn = sampler(3000).sample(row.expand(400, -1), [spec(params, position=p) for p in range(400)]).token_ids
    assert allowed[drawn].all()
    assert len(set(drawn)) > 100


def test_a_seeded_row_is_equal_alone_and_in_any_batch() -> None:
    kinds = [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(top_p=0.9),
        SamplingParams(top_k=5, temperature=0.7),
        SamplingParams(min_p=0.05),
        SamplingParams(top_k=1),
        SamplingParams(repetition_penalty=1.3, logit_bias={3: 4.0}),
        SamplingParams(top_p=0.999, temperature=2.0),
    ]
    table = logits(len(kinds) * 4, vocab=2000, seed=3)
    specs = [spec(kinds[i % len(kinds)], seed=i, position=i * 3, prompt_ids=(1, 2)) for i in range(len(table))]
    together = sampler(2000).sample(table, specs).token_ids
    alone = [sampler(2000).sample(table[i : i + 1], [specs[i]]).token_ids[0] for i in range(len(table))]
    assert together == alone
    assert together == sampler(2000).sample(table.flip(0), specs[::-1]).token_ids[::-1]


def test_seed_choice_and_position_each_change_the_draw() -> None:
    flat = torch.zeros(1, VOCAB)
    base = spec(SamplingParams())
    variants = [base, replace(base, seed=2), replace(base, choice=1), replace(base, position=10)]
    streams = [
        [sampler().sample(flat, [replace(v, position=v.position + 100 * i)]).token_ids[0] for i in range(12)]
        for v in variants
    ]
    assert len({tuple(stream) for stream in streams}) == 4


def test_greedy_takes_the_lowest_id_of_ties_and_top_k_1_equals_it() -> None:
    row = logits()
    row[0, [7, 21, 33]] = row.max() + 1
    for params in (SamplingParams(temperature=0.0), SamplingParams(top_k=1, temperature=1.5)):
        assert sampler().sample(row, [spec(params)]).token_ids == [7]


@pytest.mark.parametrize("temperature", [1e-6, 1e-40])
def test_a_tiny_temperature_is_greedy_and_never_nan(temperature: float) -> None:
    row = logits()
    drawn = sampler().sample(
        row.expand(50, -1), [spec(SamplingParams(temperature=temperature), position=p) for p in range(50)]
    )
    assert set(drawn.token_ids) == {int(row.argmax())}
    assert not drawn.errors


def test_a_row_that_is_not_finite_fails_alone() -> None:
    table = logits(4)
    table[1, 5], table[2, 6] = math.nan, math.inf
    specs = [spec(SamplingParams(num_logprobs=1), seed=s) for s in range(4)]
    result = sampler().sample(table, specs)
    assert result.errors == {1: NON_FINITE, 2: NON_FINITE}
    assert result.token_ids[0] == sampler().sample(table[:1], specs[:1]).token_ids[0]
    assert bool(torch.isnan(table[1, 5])), "the caller's logits were changed"


def test_min_tokens_bans_eos_and_stop_ids_until_reached() -> None:
    row = torch.zeros(1, VOCAB)
    row[0, 0], row[0, 9], row[0, 4], row[0, 2] = 9.0, 8.0, 7.0, 6.0
    params = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(9,))
    assert sampler().sample(row, [spec(params, num_output_tokens=2)]).token_ids == [2]
    assert sampler().sample(row, [spec(params, num_output_tokens=3)]).token_ids == [0]
    ignoring = replace(params, ignore_eos=True, stop_token_ids=(0,))
    assert sampler().sample(row, [spec(ignoring)]).token_ids == [9], "a stop id stays banned when it is an eos too"
    assert sampler().sample(row, [spec(replace(ignoring, stop_token_ids=()))]).token_ids == [0]


def test_bias_and_penalties_follow_their_formulas() -> None:
    row = logits(seed=5)
    params = SamplingParams(
        temperature=0.0, num_logprobs=0, logit_bias={3: 2.5, 8: -1.0},
        repetition_penalty=1.5, frequency_penalty=0.4, presence_penalty=0.3,
    )  # fmt: skip
    expected = row[0].double().clone()
    expected[3] += 2.5
    expected[8] -= 1.0
    prompt, output = (3, 5, 5), (8, 8, 8, 11)
    for token in {*prompt, *output}:
        expected[token] = expected[token] / 1.5 if expected[token] > 0 else expected[token] * 1.5
    for token in set(output):
        expected[token] -= 0.4 * output.count(token) + 0.3
    asked = spec(params, prompt_ids=prompt, output_ids=output)
    apply_changes(row[0], row_changes(asked, EOS, VOCAB), asked)
    assert torch.allclose(row[0].double(), expected, atol=1e-5)


def test_masks_allow_only_their_tokens_and_report_an_empty_one() -> None:
    words = np.zeros((VOCAB + 31) // 32, dtype=np.int32)
    words[37 // 32] |= np.int32(1 << (37 % 32))
    table, specs = logits(3), [spec(SamplingParams(), seed=s) for s in range(3)]
    result = sampler().sample(table, specs, {0: words, 2: np.zeros_like(words)})
    assert result.token_ids[0] == 37
    assert result.errors == {2: ALL_BANNED}
    assert result.token_ids[1] == sampler().sample(table[1:2], specs[1:2]).token_ids[0]


def test_logprobs_are_of_the_raw_logits() -> None:
    table = logits(2, seed=8)
    params = SamplingParams(temperature=0.3, logit_bias={17: 100.0}, num_logprobs=3)
    result = sampler().sample(table, [spec(params), spec(SamplingParams())])
    assert set(result.logprobs) == {0}
    record, expected = result.logprobs[0], torch.log_softmax(table[0].double(), 0)
    assert record.sampled.token_id == result.token_ids[0] == 17
    assert record.sampled.logprob == pytest.approx(float(expected[17]), abs=1e-5)
    assert record.sampled.rank == int((expected > expected[17]).sum()) + 1
    best = expected.topk(3)
    assert [t.token_id for t in record.top] == best.indices.tolist()
    assert [t.logprob for t in record.top] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert [t.rank for t in record.top] == [1, 2, 3]


def test_equal_logits_share_a_rank() -> None:
    row = torch.zeros(1, VOCAB)
    row[0, 5] = row[0, 30] = 1.0
    record = sampler().sample(row, [spec(SamplingParams(temperature=0.0, num_logprobs=2))]).logprobs[0]
    assert [(t.token_id, t.rank) for t in record.top] == [(5, 1), (30, 1)]
    assert (record.sampled.token_id, record.sampled.rank) == (5, 1)


def test_the_ends_of_every_range_leave_numbers_numbers() -> None:
    """Rows that leave one candidate take the best token of the float64 reference, however extreme the rest is."""
    smallest = 5e-324
    ends = [(LIMITS[name].minimum or smallest, LIMITS[name].maximum) for name in ("repetition_penalty", "temperature")]
    penalties = (LIMITS["frequency_penalty"].minimum, LIMITS["frequency_penalty"].maximum)
    one_left: list[dict[str, Any]] = [{"top_p": smallest}, {"min_p": 1.0}, {"top_k": 1}, {"top_k": 2**20, "min_p": 1.0}]
    table, history = logits(vocab=VOCAB) * 5, {"prompt_ids": (3, 4), "output_ids": (5, 5, 6), "num_output_tokens": 3}
    params = [
        SamplingParams(
            repetition_penalty=repetition,
            temperature=temperature,
            frequency_penalty=penalty,
            presence_penalty=-penalty,
            logit_bias={7: bias, 8: -bias},
            **left,
        )
        for repetition, temperature, penalty, bias, left in itertools.product(
            *ends, penalties, (LOGIT_BIAS_LIMIT.minimum, LOGIT_BIAS_LIMIT.maximum), one_left
        )
    ]
    specs = [spec(p, position=position, **history) for position, p in enumerate(params)]
    sampled = sampler().sample(table.expand(len(params), -1), specs)
    row = table[0].double().numpy()
    assert not sampled.errors
    assert sampled.token_ids == [int(edited(row, p, (3, 4), (5, 5, 6)).argmax()) for p in params]
