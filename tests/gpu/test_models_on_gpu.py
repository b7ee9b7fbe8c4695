"""The GPU's runner with real models: tokens of transformers, and results that no switch changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import PREVIOUS_TOKEN, PlanRow, SampleSpec, StepPlan
from tests.support.worlds.engine_settings import runner_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BASE_MODEL = Path(__file__).parents[2] / "models" / "base"
PROMPTS = [[(i * step + 3) % 97 for i in range(length)] for step, length in ((29, 22), (5, 7), (11, 40), (3, 1))]
BLOCK = 16
FAMILIES = [
    "llama", "mistral-window", "mistral-null", "qwen2-groups-of-7", "qwen2-mixed-windows", "qwen2-yarn", "qwen3",
    "qwen3-mixed-windows", "mixtral", "mixtral-window", "qwen3-moe", "qwen3-moe-mixed",
]  # fmt: skip


def load(path: Path, **changes: Any) -> Any:
    from stratos.engine.runner.cuda.runner import CudaRunner

    settings = {"block_size": BLOCK, "kv_pool_bytes": 16 << 20, "max_graph_batch": 8, **changes}
    return CudaRunner.load(runner_config(model_path=path, **settings))


def generate(
    runner: Any, prompts: list[list[int]], num_tokens: int, *, overlap: bool, chunk: int = 1 << 20, **params: Any
) -> list[list[int]]:
    """Tokens of each prompt: prompts one by one in chunks, then decode steps together, in the order of the contract."""
    sampling = SamplingParams(**{"temperature": 0.0, **params})
    outputs: list[list[int]] = []
    for index, prompt in enumerate(prompts):
        for start in range(0, len(prompt), chunk):
            end = min(start + chunk, len(prompt))
            row = _row(index, prompt[start:end], start, sampling if end == len(prompt) else None)
            tokens = _collected(runner, _launched(runner, [row]))
        outputs.append([tokens[index]])
    previous = None
    for step in range(1, num_tokens):
        rows = []
        for index, prompt in enumerate(prompts):
            is_ahead = overlap and previous is not None
            token = PREVIOUS_TOKEN if is_ahead else outputs[index][-1]
            rows.append(_row(index, [token], len(prompt) + step - 1, sampling, continues=is_ahead))
        handle = runner.launch(StepPlan(step=step, rows=tuple(rows)))
        if previous is not None:
            _keep(outputs, _collected(runner, previous))
        runner.sample(handle)
        previous = handle
        if not overlap:
            _keep(outputs, _collected(runner, handle))
            previous = None
    if previous is not None:
        _keep(outputs, _collected(runner, previous))
    return outputs


def _row(seq: int, tokens: list[int], start: int, params: SamplingParams | None, *, continues: bool = False) -> PlanRow:
    end = start + len(tokens)
    spec = params and SampleSpec(
        key=RequestKey(str(seq), 0), choice=0, seed=seq, position=end, params=params, prompt_ids=(), output_ids=(),
        num_output_tokens=0,
    )  # fmt: skip
    blocks = tuple(range(seq * 8, seq * 8 + -(-end // BLOCK)))
    return PlanRow(
        seq_id=seq, token_ids=tuple(tokens), start=start, block_table=blocks, sample=spec, continues=continues
    )


def _launched(runner: Any, rows: list[PlanRow]) -> Any:
    handle = runner.launch(StepPlan(step=0, rows=tuple(rows)))
    runner.sample(handle)
    return handle


def _collected(runner: Any, handle: Any) -> dict[int, int]:
    tokens = runner.collect(handle)
    assert not tokens.errors, tokens.errors
    return {token.seq_id: token.token_id for token in tokens.tokens}


def _keep(outputs: list[list[int]], tokens: dict[int, int]) -> None:
    for index, token in tokens.items():
        outputs[index].append(token)


def reference(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_of_transformers(tmp_path: Path, family: str) -> None:
    pytest.importorskip("transformers")
    from tests.support.reference.tiny_models import FAMILIES as CASES
    from tests.support.reference.tiny_models import save_tiny

    prefix, changes = CASES[family]
    model = save_tiny(tmp_path, prefix, **changes)
    expected = [reference(model, prompt, 12) for prompt in PROMPTS]
    runner = load(tmp_path)
    assert generate(runner, PROMPTS, 12, overlap=True) == expected
    assert generate(runner, PROMPTS, 12, overlap=False, chunk=7) == expected


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    """Runners over the demonstration model that differ in one switch."""
    if not (BASE_MODEL / "model.safetensors").exists():
        pytest.skip("models/base is not there")
    return {
        "captured": load(BASE_MODEL, dtype="bfloat16"),
        "uncaptured": load(BASE_MODEL, dtype="bfloat16", cuda_graphs=False),
        "prepare_kernel": load(BASE_MODEL, dtype="bfloat16", prepare_kernel=False),
        "dependent_launch": load(BASE_MODEL, dtype="bfloat16", dependent_launch=False),
        "both": load(BASE_MODEL, dtype="bfloat16", prepare_kernel=False, dependent_launch=False),
        "exact": load(BASE_MODEL, dtype="bfloat16", exact_kernels=True),
        "float32": load(BASE_MODEL),
        "fp8": load(BASE_MODEL, dtype="bfloat16", kv_dtype="fp8"),
        "fp8_uncaptured": load(BASE_MODEL, dtype="bfloat16", kv_dtype="fp8", cuda_graphs=False),
    }


def test_the_base_model_agrees_with_transformers(base: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(BASE_MODEL, dtype=torch.float32).eval()
    assert generate(base["float32"], PROMPTS, 24, overlap=True) == [reference(model, prompt, 24) for prompt in PROMPTS]


@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "top_p": 0.9}])
def test_captured_steps_equal_uncaptured_ones(base: dict[str, Any], params: dict[str, Any]) -> None:
    expected = generate(base["uncaptured"], PROMPTS, 40, overlap=False, **params)
    assert generate(base["captured"], PROMPTS, 40, overlap=False, **params) == expected
    assert generate(base["captured"], PROMPTS, 40, overlap=True, **params) == expected


@pytest.mark.parametrize("name", ["prepare_kernel", "dependent_launch", "both"])
def test_tokens_do_not_depend_on_how_steps_are_launched(base: dict[str, Any], name: str) -> None:
    expected = generate(base["uncaptured"], PROMPTS, 40, overlap=False, chunk=7)
    for _ in range(3):  # a race shows now and then
        assert generate(base[name], PROMPTS, 40, overlap=True, chunk=7) == expected


def test_kv_in_fp8_serves_the_same_model(base: dict[str, Any]) -> None:
    tokens = generate(base["fp8"], PROMPTS, 24, overlap=True)
    assert tokens == generate(base["fp8_uncaptured"], PROMPTS, 24, overlap=False)
    first = [prompt[0] for prompt in generate(base["uncaptured"], PROMPTS, 1, overlap=False)]
    assert sum(a[0] == b for a, b in zip(tokens, first, strict=True)) >= len(PROMPTS) - 1


def test_logits_of_captured_steps_are_bitwise_those_of_uncaptured_ones(base: dict[str, Any]) -> None:
    logits = []
    for name in ("captured", "uncaptured"):
        runner = base[name]
        with torch.inference_mode():
            runner.pages.tensor.zero_()
        generate(runner, PROMPTS, 1, overlap=False)
        rows = [_row(i, [5], len(prompt), SamplingParams(temperature=0.0)) for i, prompt in enumerate(PROMPTS)]
        handle = runner.launch(StepPlan(step=0, rows=tuple(rows)))
        logits.append(handle.logits.clone())
    assert torch.equal(*logits)


def test_exact_logits_depend_on_neither_chunk_nor_batch(base: dict[str, Any]) -> None:
    runner, prompt, greedy = base["exact"], PROMPTS[2], SamplingParams(temperature=0.0)
    found = []
    for chunk in (1, 7, 16, len(prompt)):
        for start in range(0, len(prompt), chunk):
            rows = [_row(0, prompt[start : start + chunk], start, greedy)]
            rows += [_row(1 + i, [i], 0, greedy) for i in range(chunk % 6)]
            handle = runner.launch(StepPlan(step=0, rows=tuple(rows)))
            logits = handle.logits[0].clone()
            runner.sample(handle)
            _collected(runner, handle)
        found.append(logits)
    assert all(torch.equal(found[0], other) for other in found[1:])
    alone = [generate(runner, [prompt], 16, overlap=False)[0] for prompt in PROMPTS]
    assert generate(runner, PROMPTS, 16, overlap=True) == alone


def test_freed_rows_of_padding_write_nothing(base: dict[str, Any]) -> None:
    runner = base["captured"]
    generate(runner, PROMPTS[:3], 2, overlap=False)
    before = runner.pages.tensor.clone()
    rows = [_row(i, [5], len(prompt) + 1, SamplingParams(temperature=0.0)) for i, prompt in enumerate(PROMPTS[:3])]
    _collected(runner, _launched(runner, rows))
    changed = {int(block) for block in (runner.pages.tensor != before).flatten(1).any(1).nonzero()}
    assert changed == {row.block_table[row.start // BLOCK] for row in rows}
