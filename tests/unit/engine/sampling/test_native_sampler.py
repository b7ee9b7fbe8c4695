"""The C++ sampler against the portable one: the same tokens for any parameters, on each instruction set here."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stratos.core.requests.records import PositionLogprobs, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.watermark import Watermark
from stratos.engine.contract.plan import ALL_BANNED, NON_FINITE, SampleSpec
from stratos.engine.sampling.native_sampler import NativeSampler
from stratos.engine.sampling.sampler import Sampled, Sampler
from tests.support.examples import examples
from tests.support.reference.exact_traces import generated
from tests.support.reference.native_kernels import NATIVE_SETS, native_library
from tests.support.reference.tiny_models import save_tiny
from tests.support.worlds.plan_driver import Driver, load_runner

ROWS = 8
pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


def ends(vocab: int) -> tuple[int, ...]:
    return tuple(token for token in (0, 4) if token < vocab)


@cache
def ours(name: str, vocab: int) -> NativeSampler:
    return NativeSampler(native_library(name), ends(vocab), vocab)


@cache
def portable(vocab: int) -> Sampler:
    return Sampler(ends(vocab), vocab, torch.device("cpu"))


def make_spec(params: SamplingParams, *, seed: int = 1, position: int = 9, **changes: Any) -> SampleSpec:
    spec = SampleSpec(
        key=RequestKey(f"r{seed}", 0),
        choice=0,
        seed=seed,
        position=position,
        params=params,
        prompt_ids=(1, 2, 3, 2),
        output_ids=(),
        num_output_tokens=0,
    )
    return replace(spec, **changes)


LOGITS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "peaked": lambda x: x * 6,
    "nearly flat": lambda x: x * 1e-4,
    "flat": lambda x: x * 0 + 3,
    "ties": lambda x: (x * 2).round() / 2,
    "two values": lambda x: (x > 1).float() * 5,
    "far from zero": lambda x: x + 3e4,
    "huge": lambda x: x * 1e30,
    "bfloat16": lambda x: (x * 4).bfloat16().float(),
}


def random_params(rng: random.Random, vocab: int) -> SamplingParams:
    def some(*values: Any) -> Any:
        return rng.choice([values[0], *values])

    ids = [rng.randrange(vocab) for _ in range(6)]
    return SamplingParams(
        temperature=some(1.0, 0.0, 1e-30, 1e-6, 0.1, 0.7, 2.0, 100.0, 1e6),
        top_p=some(1.0, 0.95, 0.9, 0.5, 0.1, 1e-6, 0.999999),
        top_k=some(0, 1, 2, 5, 50, 300, vocab, vocab + 5),
        min_p=some(0.0, 0.0, 1e-3, 0.05, 0.5, 1.0),
        repetition_penalty=some(1.0, 1.0, 1.3, 0.5, 2.0),
        frequency_penalty=some(0.0, 0.0, 0.7, -2.0, 2.0),
        presence_penalty=some(0.0, 0.0, 1.5, -0.3),
        logit_bias={i: rng.choice([-100.0, 100.0, 0.3, -4.5]) for i in ids[:2]} if rng.random() < 0.3 else {},
        min_tokens=some(0, 0, 5),
        stop_token_ids=(ids[2],),
        bad_sequences=((ids[3],), (2, ids[4])) if rng.random() < 0.2 else (),
        allowed_token_ids=tuple(ids) if rng.random() < 0.1 else (),
        watermark=Watermark(key=b"k" * 16) if rng.random() < 0.1 else None,
        num_logprobs=some(None, None, 0, 3, min(20, vocab)),
    )


def random_batch(rng: random.Random, vocab: int) -> tuple[Tensor, list[SampleSpec], dict[int, np.ndarray]]:
    """Logits, specs and masks of one step."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    shapes = [LOGITS[rng.choice(list(LOGITS))] for _ in range(ROWS)]
    logits = torch.stack([shape(torch.randn(vocab, generator=generator)) for shape in shapes])
    specs = []
    for _ in range(ROWS):
        output = tuple(rng.randrange(vocab) for _ in range(rng.choice([0, 1, 12])))
        params = random_params(rng, vocab)
        specs.append(
            make_spec(
                params,
                seed=rng.randrange(1 << 62),
                position=rng.randrange(1 << 20),
                prompt_ids=tuple(rng.randrange(vocab) for _ in range(9)),
                output_ids=output if params.needs_output_ids else (),
                num_output_tokens=len(output),
            )
        )
    masks = {}
    if rng.random() < 0.3:
        words = np.random.default_rng(rng.randrange(1 << 30)).integers(-(1 << 31), 1 << 31, (vocab + 31) // 32)
        masks[rng.randrange(ROWS)] = words.astype(np.int32)
    return logits, specs, masks


def assert_equal(found: Sampled, expected: Sampled, logits: Tensor) -> None:
    assert found.errors == expected.errors
    good = [row for row in range(len(expected.token_ids)) if row not in expected.errors]
    assert [found.token_ids[row] for row in good] == [expected.token_ids[row] for row in good]
    for row in good:
        if row in expected.logprobs:
            assert_equal_logprobs(found.logprobs[row], expected.logprobs[row], logits[row])
        else:
            assert row not in found.logprobs


def assert_equal_logprobs(found: PositionLogprobs, expected: PositionLogprobs, raw: Tensor) -> None:
    """Both round a row's sum.  Of equal logits at the end of a list torch takes any, so ids count above it only."""
    norm = float(raw.double().logsumexp(0))
    margin = 4 * torch.finfo(torch.float32).eps * max(1.0, abs(norm), float(raw.abs().max()))
    sides = [found.sampled, *found.top], [expected.sampled, *expected.top]
    values = [[entry.logprob for entry in side] for side in sides]
    assert values[0] == pytest.approx(values[1], rel=0, abs=margin)
    assert values[0] == pytest.approx([float(raw[entry.token_id]) - norm for entry in sides[0]], rel=0, abs=margin)
    assert (found.sampled.token_id, found.sampled.rank) == (expected.sampled.token_id, expected.sampled.rank)
    last = min((float(raw[entry.token_id]) for entry in expected.top), default=0.0) + margin
    ids = [{entry.token_id for entry in side[1:] if raw[entry.token_id] > last} for side in sides]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("vocab", [1, 5, 63, 97, 1000, 5003])
def test_tokens_are_those_of_the_portable_sampler(vocab: int) -> None:
    rng = random.Random(vocab)
    for _ in range(examples(90)):
        logits, specs, masks = random_batch(rng, vocab)
        before, expected = logits.clone(), portable(vocab).sample(logits, specs, masks)
        for name in NATIVE_SETS:
            assert_equal(ours(name, vocab).sample(logits, specs, masks), expected, logits)
        assert torch.equal(logits, before)


@pytest.mark.parametrize("shape", LOGITS)
def test_a_whole_vocabulary_has_the_same_tokens(shape: str) -> None:
    """32 Ki tokens: most of them never get their noise computed."""
    vocab, rng = 32_000, random.Random(len(shape))
    logits = LOGITS[shape](torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(5)))
    for top_p, top_k, temperature in [(1.0, 0, 1.0), (0.95, 0, 1.0), (0.3, 0, 0.8), (0.9, 40, 1.0), (1.0, 2000, 1.3)]:
        params = SamplingParams(top_p=top_p, top_k=top_k, temperature=temperature, num_logprobs=2)
        specs = [make_spec(params, seed=rng.randrange(1 << 40)) for _ in range(ROWS)]
        expected = portable(vocab).sample(logits, specs)
        for name in NATIVE_SETS:
            assert_equal(ours(name, vocab).sample(logits, specs), expected, logits)


def test_tokens_equal_to_the_kth_all_count_for_top_p_however_long_the_list() -> None:
    """Some thousand tokens are as likely as the third: half of the mass reaches into them."""
    logits = torch.zeros(1, 5000)
    logits[0, 1000:1002] = 2.0
    params = SamplingParams(top_k=3, top_p=0.5)
    specs = [make_spec(params, seed=seed) for seed in range(40)]
    expected = [portable(5000).sample(logits, [spec]).token_ids[0] for spec in specs]
    assert len(set(expected) - {1000, 1001}) > 30
    beside = [make_spec(SamplingParams(top_k=3000))]
    for spec, token in zip(specs, expected, strict=True):
        for sampler in (portable(5000), *(ours(name, 5000) for name in NATIVE_SETS)):
            assert sampler.sample(logits.repeat(2, 1), [spec, *beside]).token_ids[0] == token


@pytest.mark.parametrize(
    ("shape", "top_k"), [("normal", 5_000), ("both zeros", 18_000), ("far from zero", 31_999), ("denormal", 12_000)]
)
def test_the_kth_logit_of_a_wide_top_k_is_found_by_counting(shape: str, top_k: int) -> None:
    """k is larger than the vocabulary has blocks; the last rows allow fewer tokens than that."""
    vocab, generator = 32_000, torch.Generator().manual_seed(top_k)
    logits = torch.randn(ROWS, vocab, generator=generator)
    odd = logits[1::2]  # each follows a row that leaves likely logits in the scratch
    if shape == "both zeros":  # a third each above, at and below them: which sign a zero has must not matter
        signs = torch.rand(odd.shape, generator=generator) - 0.5
        logits[1::2] = torch.where(odd.abs() > 0.43, odd, torch.where(signs > 0, 0.0, -0.0))
    elif shape != "normal":
        logits[1::2] = LOGITS["far from zero"](odd) if shape == "far from zero" else odd * 1e-43
    words = np.full((vocab + 31) // 32, -1, dtype=np.int32)
    words[100:] = 0
    kinds = SamplingParams(top_k=20_000, top_p=0.5), SamplingParams(top_k=top_k, temperature=1.3, num_logprobs=1)
    specs = [make_spec(kinds[row % 2], seed=top_k + row) for row in range(ROWS)]
    masks = dict.fromkeys((6, 7), words)
    expected = portable(vocab).sample(logits, specs, masks)
    for name in NATIVE_SETS:
        assert_equal(ours(name, vocab).sample(logits, specs, masks), expected, logits)


def test_all_instruction_sets_give_the_same_bits() -> None:
    rng, vocab = random.Random(3), 1003
    for _ in range(40):
        logits, specs, masks = random_batch(rng, vocab)
        first, *others = (ours(name, vocab).sample(logits, specs, masks) for name in NATIVE_SETS)
        assert all(other == first for other in others)


@pytest.mark.parametrize("name", NATIVE_SETS)
def test_a_row_that_is_not_finite_or_banned_fails_alone(name: str) -> None:
    logits, params = torch.zeros(4, 97), SamplingParams(num_logprobs=1)
    logits[1, 3], logits[2, 96] = float("nan"), float("-inf")
    nothing = make_spec(SamplingParams(bad_sequences=tuple((token,) for token in range(97))))
    specs = [make_spec(params), make_spec(params), make_spec(params), nothing]
    sampled = ours(name, 97).sample(logits, specs)
    assert sampled.errors == {1: NON_FINITE, 2: NON_FINITE, 3: ALL_BANNED}
    assert sampled.token_ids[0] == portable(97).sample(logits[:1], specs[:1]).token_ids[0]
    assert set(sampled.logprobs) == {0}


@pytest.mark.parametrize("name", NATIVE_SETS)
def test_penalties_follow_an_output_that_grows_begins_again_or_moves_on(name: str) -> None:
    params, logits = SamplingParams(temperature=0.0, frequency_penalty=0.5, repetition_penalty=1.2), torch.randn(1, 97)
    output, prompts = [7, 7, 96, 1] * 30, [(1, 2), (1, 2), (5,)]
    for prompt in prompts:
        for length in (0, 1, 2, 50, 120, 3):
            tokens = tuple(output[:length])
            spec = make_spec(params, prompt_ids=prompt, output_ids=tokens, num_output_tokens=length)
            assert ours(name, 97).sample(logits, [spec]) == portable(97).sample(logits, [spec])


@pytest.mark.parametrize("name", NATIVE_SETS)
def test_batch_and_threads_change_no_bit(name: str) -> None:
    logits, specs, masks = random_batch(random.Random(8), 9001)
    whole, before = ours(name, 9001).sample(logits, specs, masks), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert ours(name, 9001).sample(logits, specs, masks) == whole
    finally:
        torch.set_num_threads(before)
    for row, spec in enumerate(specs):
        mask = {0: masks[row]} if row in masks else None
        alone = ours(name, 9001).sample(logits[row : row + 1], [spec], mask)
        assert (alone.token_ids[0], alone.logprobs.get(0)) == (whole.token_ids[row], whole.logprobs.get(row))


def test_an_id_beyond_the_vocabulary_is_a_bug_and_touches_no_memory() -> None:
    spec = make_spec(SamplingParams(logit_bias={97: 1.0}))
    with pytest.raises(IndexError, match="beyond the vocabulary"):
        ours(NATIVE_SETS[0], 97).sample(torch.zeros(1, 97), [spec])


def test_the_switch_of_a_runner_changes_the_sampler_and_no_token(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    runners = [load_runner(tmp_path, native_sampler=is_native) for is_native in (True, False)]
    if "native" not in runners[0].info.identity.numerics_id:
        pytest.skip("the kernels are not built")
    assert [type(runner.sampler) for runner in runners] == [NativeSampler, Sampler]
    params, tokens = SamplingParams(temperature=1.0, top_p=0.9, frequency_penalty=0.4), []
    for runner in runners:
        driver = Driver(runner)
        streams = [driver.stream([3 + i, 5, 7], params=params) for i in range(3)]
        tokens.append([trace.tokens for trace in generated(driver, streams, 11)])
    assert tokens[0] == tokens[1]
