"""Exact mode: a sequence's logits and KV are the same bits, whatever happens around it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.core.adapter_files import read_adapter_files
from stratos.engine.runner.torch_runner import TorchRunner
from tests.unit.engine_runner.core_driver import make_core, make_request, run
from tests.unit.engine_runner.exact_traces import NUM_TOKENS, Trace, alone, generated
from tests.unit.engine_runner.plan_driver import BLOCK_SIZE, Driver, load_runner
from tests.unit.engine_runner.tiny_models import FAMILIES, save_adapter, save_tiny

LONG: dict[str, Any] = {"head_dim": 80, "intermediate_size": 2816, "max_position_embeddings": 256}
"""Contexts of several tiles, and a sum so long that oneDNN takes another kernel for one row."""
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "head-dim-80": ("Llama", LONG, 141),
    **{name: (*FAMILIES[name], 41) for name in ("qwen2-groups-of-7", "mistral-window", "qwen3", "qwen3-moe")},
}
KERNELS: dict[str, dict[str, bool]] = {
    "best": {},
    "torch-ops": {"enable_fused_ops": False},
    "torch": {"enable_native_kernels": False},
    "torch-unpacked": {"enable_native_kernels": False, "enable_prepacked_gemm": False},
}
ADAPTED = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    prefix, changes, length = CASES[request.param]
    path = tmp_path_factory.mktemp(request.param)
    model = save_tiny(path, prefix, **changes)
    if prefix == "Llama":
        save_adapter(path / "adapter", model, rank=3, targets=ADAPTED, seed=1)
    return path, [(i * 37 + 11) % 97 for i in range(length)]


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def load(path: Path, dtype: str, **settings: Any) -> TorchRunner:
    return load_runner(path, dtype=dtype, kv_pool_bytes=16 << 20, **settings)


@pytest.mark.parametrize(
    ("case", "kernels"),
    [(case, kernels) for case in CASES for kernels in KERNELS if case == "head-dim-80" or kernels in ("best", "torch")],
    indirect=["case"],
)
def test_nothing_around_a_sequence_changes_a_bit_of_it(case: tuple[Path, list[int]], dtype: str, kernels: str) -> None:
    path, prompt = case
    runner = load(path, dtype, **KERNELS[kernels])
    adapter = ""
    if (path / "adapter").exists():
        files = read_adapter_files(path / "adapter")
        runner.load_adapter(files)
        adapter = files.digest
    reference, adapted = alone(runner, prompt), alone(runner, prompt, adapter=adapter)
    assert (reference == adapted) is not bool(adapter)
    for chunk in (1, 7, 16):
        assert alone(runner, prompt, chunk) == reference
    check_batch(runner, prompt, reference, adapted, adapter)
    check_prefix_hit_and_recompute(runner, prompt, reference)
    check_handoff(runner, load(path, dtype, **KERNELS[kernels]), prompt, reference)


def check_batch(runner: TorchRunner, prompt: list[int], reference: Trace, adapted: Trace, adapter: str) -> None:
    driver = Driver(runner)
    others = [driver.stream(prompt[3 : 4 + 5 * i], adapter=adapter if i % 2 else "") for i in range(6)]
    streams = [*others[:3], driver.stream(prompt), *others[3:], driver.stream(prompt, adapter=adapter)]
    traces = generated(driver, streams, 11)
    assert traces[3] == reference
    assert traces[-1] == adapted


def check_prefix_hit_and_recompute(runner: TorchRunner, prompt: list[int], reference: Trace) -> None:
    driver = Driver(runner)
    first = driver.stream(prompt)
    generated(driver, [first], 16)
    hit = driver.stream(prompt)
    shared = 8 // BLOCK_SIZE
    hit.blocks, hit.num_computed = first.blocks[:shared] + hit.blocks[shared:], 8
    assert generated(driver, [hit], 9) == [reference]
    resumed = driver.stream([*prompt, *reference.tokens[:3]])
    driver.step([(resumed, resumed.row(1 << 20, is_sampling=False))])
    resumed.num_computed -= 1
    trace = generated(driver, [resumed], 1)[0]
    assert trace.logits[: NUM_TOKENS - 3] == reference.logits[3:]
    assert trace.tokens[: NUM_TOKENS - 3] == reference.tokens[3:]


def check_handoff(source: TorchRunner, target: TorchRunner, prompt: list[int], reference: Trace) -> None:
    driver, other = Driver(source), Driver(target, seed=9)
    sent, received = driver.stream(prompt), other.stream(prompt)
    driver.step([(sent, sent.row(len(prompt) - 1, is_sampling=False))])
    count, layers = len(prompt) - 1, source.info.geometry.num_layers
    target.scatter(received.blocks, 0, count, 0, layers, source.gather(sent.blocks, 0, count, 0, layers))
    received.num_computed = count
    assert generated(other, [received], 1) == [reference]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_exact_mode_torch_fails_this_check(tmp_path: Path, dtype: str) -> None:
    save_tiny(tmp_path, "Llama", **LONG)
    settings = {"exact": False, "enable_native_kernels": False, "enable_prepacked_gemm": False}
    runner = load(tmp_path, dtype, **settings)
    prompt = [(i * 37 + 11) % 97 for i in range(141)]
    reference, chunked = alone(runner, prompt), alone(runner, prompt, 1)
    assert reference.kv != chunked.kv
    assert reference.logits != chunked.logits
    assert load(tmp_path, dtype).info.identity.numerics_id != runner.info.identity.numerics_id


def test_threads_of_exact_kernels_do_not_change_a_bit(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama", **LONG)
    prompt, before = [(i * 37 + 11) % 97 for i in range(141)], torch.get_num_threads()
    try:
        traces = [alone(load(tmp_path, "float32", num_threads=threads), prompt, 50) for threads in (1, 2)]
    finally:
        torch.set_num_threads(before)
    assert traces[0] == traces[1]


@pytest.mark.parametrize("seed", range(4))
def test_any_schedule_of_the_whole_engine_gives_the_tokens_of_running_alone(tmp_path: Path, seed: int) -> None:
    save_tiny(tmp_path, "Llama")
    source = random.Random(seed)
    shared = [source.randrange(5, 97) for _ in range(24)]
    requests = [
        make_request(
            [*shared[: source.randrange(1, 24)], *(source.randrange(5, 97) for _ in range(source.randrange(1, 40)))],
            f"r{index}",
            n=source.choice([1, 1, 2]),
            seed=index,
            temperature=source.choice([0.0, 1.0]),
            max_tokens=source.randrange(4, 24),
            ignore_eos=True,
        )
        for index in range(10)
    ]
    expected = {}
    for request in requests:
        expected.update(run(make_core(tmp_path, enable_prefix_cache=False), request).choices)
    core = make_core(
        tmp_path,
        kv_pool_bytes=40 * 2 * 2 * 2 * 10 * 4 * BLOCK_SIZE,
        max_num_seqs=source.randrange(3, 9),
        max_num_batched_tokens=source.randrange(9, 50),
        admission_mark=1.0,
        default_output_tokens=1,
    )
    outcomes = run(core, *requests)
    assert not outcomes.errors
    assert core._scheduler.num_preemptions > 0
    assert {key: outcome.ids for key, outcome in outcomes.choices.items()} == {
        key: outcome.ids for key, outcome in expected.items()
    }
