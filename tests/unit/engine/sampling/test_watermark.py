"""The watermark: tensors against the definition, detection in marked, unmarked and resumed output."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from stratos.cli.main import app
from stratos.common.errors import BadRequest
from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.watermark import Detection, Watermark, check_watermark, detect, is_green
from stratos.engine.contract.plan import SampleSpec
from stratos.engine.core import EngineCore
from stratos.engine.sampling.sampler import Sampler
from stratos.engine.sampling.watermark import add_watermark
from tests.support.paths import BASE_MODEL, FIXTURES
from tests.support.reference.base_tokenizer import base_tokenizer
from tests.support.worlds.core_driver import make_core, make_request, run

MARK = Watermark(key=b"0123456789abcdef-test")
NUM_TOKENS = 200


@functools.cache
def prompt() -> list[int]:
    return base_tokenizer().encode_plain("import os\n\n\nclass Reader:\n")


def spec(watermark: Watermark | None, prompt: tuple[int, ...], output: tuple[int, ...]) -> SampleSpec:
    return SampleSpec(
        key=RequestKey("r", 0), choice=0, seed=1, position=9, params=SamplingParams(watermark=watermark),
        prompt_ids=prompt, output_ids=output, num_output_tokens=len(output),
    )  # fmt: skip


@pytest.mark.parametrize("gamma", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("width", [1, 3])
def test_tensors_follow_the_definition(gamma: float, width: int) -> None:
    mark = replace(MARK, gamma=gamma, delta=1.5, num_context_tokens=width)
    specs = [spec(mark, (5, 6), ()), spec(None, (1,), ()), spec(mark, (9, 8), (7,)), spec(mark, (1,), (2, 3, 4, 5))]
    contexts = [(5, 6), None, (9, 8, 7), (3, 4, 5)]
    logits = torch.zeros(4, 500)
    add_watermark(logits, specs, torch.arange(500, dtype=torch.int32))
    for row, context in zip(logits, contexts, strict=True):
        expected = [1.5 if context and is_green(mark, context, token) else 0.0 for token in range(500)]
        assert row.tolist() == expected


def test_lists_are_unrelated_shares_of_the_vocabulary() -> None:
    table = np.array([[is_green(MARK, (context,), token) for token in range(400)] for context in range(60)])
    assert stats.binomtest(int(table.sum()), table.size, MARK.gamma).pvalue > 1e-3
    assert stats.kstest(stats.binom.cdf(table.sum(1), 400, MARK.gamma), "uniform").pvalue > 1e-3
    other = np.array([[is_green(replace(MARK, key=b"x" * 16), (c,), t) for t in range(400)] for c in range(60)])
    assert abs(np.corrcoef(table.ravel(), other.ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.03


def test_banned_tokens_stay_banned_and_unmarked_rows_are_not_touched() -> None:
    params = SamplingParams(watermark=replace(MARK, delta=20.0), temperature=0.0, allowed_token_ids=(3,))
    table = torch.randn(2, 4096, generator=torch.Generator().manual_seed(0))
    specs = [replace(spec(MARK, (1,), ()), params=params), spec(None, (1,), ())]
    sampler = Sampler((0,), 4096, torch.device("cpu"))
    together = sampler.sample(table, specs).token_ids
    assert together == [3, sampler.sample(table[1:], specs[1:]).token_ids[0]]


@cache
def core() -> EngineCore:
    return make_core(BASE_MODEL, kv_pool_bytes=12 << 20, max_num_batched_tokens=256)


def outputs(num: int, watermark: Watermark | None, **fields: Any) -> list[list[int]]:
    params = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "watermark": watermark, **fields}
    requests = [make_request(prompt(), f"r{seed}", seed=seed, **params) for seed in range(num)]
    found = run(core(), *requests).choices
    return [found[f"r{seed}", 0].ids for seed in range(num)]


@pytest.fixture(scope="module")
def marked() -> list[list[int]]:
    return outputs(8, MARK)


@pytest.mark.slow
def test_marked_output_is_detected_and_nothing_else(marked: list[list[int]]) -> None:
    assert all(detect(MARK, ids).z_score > 4 for ids in marked), [detect(MARK, ids).z_score for ids in marked]
    plain = outputs(8, None)
    assert all(abs(detect(MARK, ids).z_score) < 4 for ids in plain)
    assert all(abs(detect(replace(MARK, key=b"another key, wrong"), ids).z_score) < 4 for ids in marked)


def test_the_share_of_false_alarms_is_that_of_the_normal_distribution() -> None:
    random = np.random.default_rng(3)
    scores = [detect(MARK, random.integers(0, 4096, NUM_TOKENS).tolist()).z_score for _ in range(500)]
    assert max(scores) < 4
    assert stats.kstest(scores, "norm").pvalue > 1e-3
    held_out = (FIXTURES / "held_out" / "prose.txt").read_text(encoding="utf-8")
    ids = base_tokenizer().encode_plain(held_out)
    texts = [ids[begin : begin + NUM_TOKENS] for begin in range(0, 40 * NUM_TOKENS, NUM_TOKENS)]
    assert max(detect(MARK, text).z_score for text in texts) < 4


def test_the_same_tokens_alone_and_after_a_resume(marked: list[list[int]]) -> None:
    for cut, end in ((0, 40), (1, 40), (150, NUM_TOKENS)):
        fields = {"max_tokens": end, "ignore_eos": True, "watermark": MARK}
        request = make_request(prompt(), seed=2, emitted=marked[2][:cut], **fields)
        resumed = run(core(), request).choices["r", 0].ids
        assert resumed == marked[2][cut:end]
    assert detect(MARK, marked[2][:cut] + resumed).z_score > 4


@pytest.mark.parametrize("gamma", [0.001, 0.25, 0.9])
def test_the_p_value_is_that_of_the_binomial_distribution(gamma: float) -> None:
    mark, random = replace(MARK, gamma=gamma), np.random.default_rng(5)
    for num_tokens in (2, 5, 60, 3000):
        found = detect(mark, random.integers(0, 1 << 20, num_tokens).tolist())
        expected = stats.binom.sf(found.num_green - 1, found.num_scored, gamma)
        assert found.p_value == pytest.approx(expected, rel=1e-9)


def test_a_few_green_tokens_prove_nothing() -> None:
    ids = [1]
    while len(ids) < 7:
        ids.append(next(t for t in range(ids[-1] + 1, 4096) if is_green(MARK, (ids[-1],), t)))
    found = detect(MARK, ids)
    assert found.num_green == found.num_scored == 6
    assert found.z_score > 4
    assert found.p_value == pytest.approx(0.25**6)


def test_a_repeated_pair_counts_once() -> None:
    token = next(t for t in range(4096) if is_green(MARK, (t,), t))
    assert detect(MARK, [token] * 500).num_scored == 1
    assert detect(MARK, [token]) == Detection(0, 0, 0.0, 1.0)


def test_the_key_is_never_shown() -> None:
    assert "0123456789" not in repr(MARK)
    assert "0123456789" not in repr(SamplingParams(watermark=MARK))


@pytest.mark.parametrize(
    "changes",
    [{"key": b"short"}, {"key": b"x" * 65}, {"gamma": 0.0}, {"gamma": 1.0}, {"gamma": 1e-12}, {"delta": 0.0},
     {"delta": float("nan")}, {"delta": 21.0}, {"num_context_tokens": 0}, {"num_context_tokens": 9}],
)  # fmt: skip
def test_what_cannot_mark_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        check_watermark(replace(MARK, **changes))


def test_the_command_detects(marked: list[list[int]], tmp_path: Path) -> None:
    text, key = tmp_path / "text", tmp_path / "key"
    key.write_bytes(MARK.key + b"\n")
    command = ["watermark", "detect", str(text), "--model", str(BASE_MODEL), "--key-file", str(key)]
    for ids, is_marked in ((marked[0], True), (prompt() * 20, False)):
        text.write_text(base_tokenizer().decode(ids), encoding="utf-8")
        result = CliRunner().invoke(app, command)
        found = json.loads(result.stdout)
        assert (result.exit_code, found["is_marked"], found["p_value"] < 1e-5) == (not is_marked, is_marked, is_marked)
    strict = CliRunner().invoke(app, [*command, "--p-value", "0"])
    assert json.loads(strict.stdout)["is_marked"] is False


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (b"x" * 16, [], "no key"),
        (b"x" * 16, ["--key-file", "missing"], "key file cannot be read"),
        (b"\xff", ["--key-file", "short"], "text cannot be read"),
        (b"a", ["--key-file", "short"], "16 to 64 bytes"),
        (b"a", ["--key-file", "key", "--gamma", "1.5"], "gamma"),
        (b"a", ["--key-file", "key", "--context-tokens", "0"], "context"),
    ],
)
def test_the_command_explains_what_it_cannot_use(
    content: bytes, flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_bytes(content)
    Path("short").write_text("short")
    Path("key").write_bytes(MARK.key)
    command = ["watermark", "detect", "text", "--model", str(BASE_MODEL), *flags]
    result = CliRunner().invoke(app, command, env={"STRATOS_GATEWAY_WATERMARK__KEY": ""})
    assert result.exit_code == 1
    assert message in result.output
