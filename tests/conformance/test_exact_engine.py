"""Exact mode through the whole engine: preemption, swap and prefix hits leave the bits of running alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stratos.core.requests.records import EngineRequest
from tests.support.pairwise import thinned
from tests.support.reference.exact_traces import INEXACT, KERNELS
from tests.support.reference.gguf_models import save_gguf
from tests.support.reference.quantised_models import save_quantised
from tests.support.reference.tiny_models import FAMILIES, save_tiny
from tests.support.worlds.core_driver import make_core, make_request, run
from tests.support.worlds.plan_driver import BLOCK_SIZE

FAMILY_OF_SEED = dict(enumerate(("llama", "mixtral", "mistral-window", "qwen2-groups-of-7", "qwen3", "llama")))
FAMILY_OF_SEED |= {7: "deepseek-v3", 8: "deepseek-v2"}
STORED = ("compressed-int4", "awq", "gguf")
NUM_BLOCKS, NUM_HOST_BLOCKS = 40, 60
SCHEDULES = [
    (seed, kernels, dtype)
    for seed, kernels in [
        *((seed, "best") for seed in FAMILY_OF_SEED),
        (0, "torch"),
        (1, "torch"),
        (7, "torch"),
        (1, "kv-int8"),
        (0, "llm-int8"),
        (0, "int4+head"),
    ]
    for dtype in ("float32", "bfloat16")
] + [(seed, name, "bfloat16") for seed, name in enumerate(STORED)]
KEPT = [
    *((seed, "best", "bfloat16") for seed in FAMILY_OF_SEED),
    (0, "best", "float32"),
    (1, "torch", "bfloat16"),
    (1, "kv-int8", "bfloat16"),
    (0, "llm-int8", "bfloat16"),
    (0, "int4+head", "bfloat16"),
    (1, "awq", "bfloat16"),
    (2, "gguf", "bfloat16"),
]
"""Every family, and both types and kernels, with the host tier and without it."""


def random_requests(source: random.Random, count: int = 10) -> list[EngineRequest]:
    """Requests that share prefixes; some have two choices, some are sampled."""
    shared = [source.randrange(5, 97) for _ in range(24)]
    return [
        make_request(
            [*shared[: source.randrange(1, 24)], *(source.randrange(5, 97) for _ in range(source.randrange(1, 40)))],
            f"r{index}",
            n=source.choice([1, 1, 2]),
            seed=index,
            temperature=source.choice([0.0, 1.0]),
            max_tokens=source.randrange(4, 24),
            ignore_eos=True,
            num_logprobs=2,
        )
        for index in range(count)
    ]


def alone_and_crowded(path: Path, runner: dict[str, Any], seed: int) -> tuple[dict[Any, Any], dict[Any, Any], Any]:
    """Outcomes of every request by itself and of all in one small engine, and the status of that engine."""
    source = random.Random(seed)
    requests = random_requests(source)
    expected: dict[Any, Any] = {}
    one_by_one = make_core(path, runner=runner, prefix_cache=False)
    for request in requests:
        expected |= run(one_by_one, request).choices
    block_bytes = one_by_one.info.geometry.token_bytes * BLOCK_SIZE
    core = make_core(
        path,
        kv_pool_bytes=NUM_BLOCKS * block_bytes,
        runner={**runner, "host_pool_bytes": seed % 2 * NUM_HOST_BLOCKS * block_bytes},
        max_num_seqs=source.randrange(4, 9),
        max_num_batched_tokens=source.randrange(9, 50),
        kv_watermark=1.0,
        admission_counts_budgets=False,
        default_output_tokens=1,
        swap_costs=False,
    )
    outcomes = run(core, *requests)
    assert not outcomes.errors
    return expected, outcomes.choices, core.status()


def saved(path: Path, name: str) -> Path:
    """A stored Llama in a format, or in blocks of a GGUF file."""
    if name == "gguf":
        save_gguf(path, {"": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q8_0"})
        return path / "folder"
    save_quantised(path, name)
    return path


@pytest.mark.parametrize(("seed", "kernels", "dtype"), thinned(SCHEDULES, KEPT))
def test_any_schedule_gives_the_bits_of_running_alone(tmp_path: Path, dtype: str, seed: int, kernels: str) -> None:
    prefix, changes = ("Llama", {}) if kernels in STORED else FAMILIES[FAMILY_OF_SEED[seed]]
    folder = saved(tmp_path, kernels) if kernels in STORED else tmp_path
    if kernels not in STORED:
        save_tiny(tmp_path, prefix, **changes)
    expected, crowded, status = alone_and_crowded(folder, {"dtype": dtype, **KERNELS.get(kernels, {})}, seed)
    assert status.num_preemptions > 0 or "sliding_window" in changes  # whose blocks before the window are given back
    assert (status.host.num_swapped_out > 0) == (seed % 2 == 1)
    assert crowded == expected


def test_without_exact_mode_a_schedule_shows(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    expected, crowded, _ = alone_and_crowded(tmp_path, {"dtype": "bfloat16", **INEXACT}, 1)
    assert crowded != expected
