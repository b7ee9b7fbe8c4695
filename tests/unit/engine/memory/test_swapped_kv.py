"""KV that went to host memory and came back is the same bit for bit: tokens and log probabilities tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.engine.core import EngineCore
from tests.support.reference.tiny_models import save_tiny_llama
from tests.support.worlds.core_driver import Outcomes, make_core, make_request, run

NUM_TOKENS = 24
PROMPTS = [[(i * 31 + 7 * k) % 97 for i in range(11 + 3 * k)] for k in range(4)]
PARAMS: dict[str, Any] = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 0.9, "num_logprobs": 3}
BLOCK_FLOATS = 4 * 2 * 2 * 2 * 10
"""Tokens of a block, layers, K and V, heads, head_dim."""
CROWDED = {
    "kv_watermark": 1.0,
    "admission_counts_budgets": False,
    "default_output_tokens": 1,
    "swap_costs": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_llama(path)
    return path


def crowded_core(folder: Path, dtype: str, **config: Any) -> EngineCore:
    """A device pool of 18 blocks and a host pool of 60."""
    block_bytes = BLOCK_FLOATS * (4 if dtype == "float32" else 2)
    runner = {"dtype": dtype, "host_pool_bytes": 60 * block_bytes}
    return make_core(folder, kv_pool_bytes=18 * block_bytes, runner=runner, **CROWDED, **config)


def outcomes_of(core: EngineCore, n: int) -> Outcomes:
    requests = [make_request(prompt, f"r{k}", n=n, seed=k, **PARAMS) for k, prompt in enumerate(PROMPTS)]
    outcomes = run(core, *requests)
    assert not outcomes.errors
    return outcomes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("n", "sharing"), [(1, False), (1, True), (3, True)])
def test_swapped_sequences_have_the_bits_of_undisturbed_ones(folder: Path, dtype: str, n: int, sharing: bool) -> None:
    alone = make_core(folder, runner={"dtype": dtype}, prefix_cache=False)
    expected = outcomes_of(alone, n)
    assert alone.status().num_preemptions == 0
    core = crowded_core(folder, dtype, prefix_cache=sharing)
    assert outcomes_of(core, n).choices == expected.choices
    status = core.status()
    assert status.host.num_restored == status.host.num_swapped_out > 1
    assert n > 1 or status.num_preemptions == status.host.num_swapped_out, "some were computed again"
    assert status.host.num_blocks_in > 2


def test_what_the_host_holds_is_what_is_read(folder: Path) -> None:
    """A changed element in host memory changes the output, so it is not computed again on the quiet."""
    expected = outcomes_of(crowded_core(folder, "float32", prefix_cache=False), 1)
    core = crowded_core(folder, "float32", prefix_cache=False)
    for k, prompt in enumerate(PROMPTS):
        core.add(make_request(prompt, f"r{k}", seed=k, **PARAMS))
    host = core.runner.host  # type: ignore[attr-defined]
    logprobs: dict[str, list[Any]] = {}
    while core.has_work:
        for output in core.step().outputs:
            logprobs.setdefault(output.key.request_id, []).extend(output.logprobs)
        with torch.inference_mode():
            host.slots.neg_()
            host.note_content(range(host.num_slots))  # or it is found to be damaged
    assert any(logprobs[f"r{k}"] != expected.choices[f"r{k}", 0].logprobs for k in range(len(PROMPTS)))
