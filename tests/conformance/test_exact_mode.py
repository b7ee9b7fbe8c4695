"""Exact mode: a sequence's tokens, log probabilities, logits and KV are the same bits in any surroundings."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.kv import KvRange
from stratos.engine.runner.torch_runner import TorchRunner
from tests.support.pairwise import thinned
from tests.support.reference.exact_traces import (
    BUILDS,
    INEXACT,
    KERNELS,
    NUM_TOKENS,
    Trace,
    alone,
    generated,
    using_build,
)
from tests.support.reference.native_kernels import NATIVE_SETS
from tests.support.reference.tiny_models import FAMILIES, save_adapter, save_tiny
from tests.support.worlds.plan_driver import BLOCK_SIZE, FULL, Driver, load_runner

LONG: dict[str, Any] = {"head_dim": 80, "intermediate_size": 2816, "max_position_embeddings": 256}
"""Contexts of several tiles, and a sum so long that oneDNN takes another kernel for one row."""
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "head-dim-80": ("Llama", LONG, 141),
    **{
        name: (*FAMILIES[name], 41)
        for name in ("qwen2-groups-of-7", "mistral-window", "qwen3", "qwen3-moe", "deepseek-v3", "glm4-moe-groups")
    },
}
ADAPTED = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
DTYPES = ["float32", "bfloat16"]
BORDERS = [1, BLOCK_SIZE, 16, 63, 64, 65]
AT_BORDERS = ["float32", "float32", "bfloat16", "bfloat16", "float32", "bfloat16"]
"""Kernels in turn; each of both has both types."""
BEST = next(iter(NATIVE_SETS), "")
"""Build that a runner takes by itself."""
SURROUNDED = [
    (case, kernels, dtype)
    for case in CASES
    for kernels in KERNELS
    for dtype in DTYPES
    if case == "head-dim-80" or kernels in ("best", "torch")
]
THREADED = list(itertools.product(KERNELS, DTYPES))


def is_rare(index: int, dtype: str) -> bool:
    """One of both types for each entry of a list, in turn: what is left to the thorough run."""
    return dtype != DTYPES[index % 2]


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    prefix, changes, length = CASES[request.param]
    path = tmp_path_factory.mktemp(request.param)
    model = save_tiny(path, prefix, **changes)
    if prefix == "Llama":
        save_adapter(path / "adapter", model, rank=3, targets=ADAPTED, seed=1)
    return path, prompt_of(length)


@pytest.fixture(scope="module")
def long_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long")
    save_tiny(path, "Llama", **LONG)
    return path


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny(path, "Llama")
    return path


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prompt_of(length: int) -> list[int]:
    return [(i * 37 + 11) % 97 for i in range(length)]


def load(path: Path, dtype: str, **settings: Any) -> TorchRunner:
    return load_runner(path, dtype=dtype, kv_pool_bytes=16 << 20, **settings)


@pytest.mark.parametrize(
    ("case", "kernels", "dtype"),
    thinned(
        SURROUNDED,
        [
            (case, kernels, dtype)
            for case, kernels, dtype in SURROUNDED
            if (kernels == "best" and (case == "head-dim-80" or dtype == "bfloat16"))
            or (case == "head-dim-80" and not is_rare(list(KERNELS).index(kernels), dtype))
        ],
    ),
    indirect=["case"],
)
def test_nothing_around_a_sequence_changes_a_bit_of_it(case: tuple[Path, list[int]], dtype: str, kernels: str) -> None:
    path, prompt = case
    if kernels != "best":
        prompt = prompt[:75]  # two tiles
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
    streams = [
        *others[:3],
        driver.stream(prompt, params=FULL),
        *others[3:],
        driver.stream(prompt, adapter=adapter, params=FULL),
    ]
    traces = generated(driver, streams, 11)
    assert traces[3] == reference
    assert traces[-1] == adapted


def check_prefix_hit_and_recompute(runner: TorchRunner, prompt: list[int], reference: Trace) -> None:
    driver = Driver(runner)
    first = driver.stream(prompt)
    generated(driver, [first], 16)
    hit = driver.stream(prompt, params=FULL)
    shared = 8 // BLOCK_SIZE
    hit.blocks, hit.num_computed = first.blocks[:shared] + hit.blocks[shared:], 8
    assert generated(driver, [hit], 9) == [reference]
    resumed = driver.stream([*prompt, *reference.tokens[:3]], params=FULL)
    driver.step([(resumed, resumed.row(1 << 20, is_sampling=False))])
    resumed.num_computed -= 1
    trace = generated(driver, [resumed], 1)[0]
    assert trace.logits[: NUM_TOKENS - 3] == reference.logits[3:]
    assert trace.logprobs[: NUM_TOKENS - 3] == reference.logprobs[3:]
    assert trace.tokens[: NUM_TOKENS - 3] == reference.tokens[3:]


def check_handoff(source: TorchRunner, target: TorchRunner, prompt: list[int], reference: Trace) -> None:
    driver, other = Driver(source), Driver(target, seed=9)
    sent, received = driver.stream(prompt), other.stream(prompt, params=FULL)
    driver.step([(sent, sent.row(len(prompt) - 1, is_sampling=False))])
    count, layers = len(prompt) - 1, source.info.geometry.num_layers
    target.scatter(
        received.blocks, KvRange(0, count, 0, layers), source.gather(sent.blocks, KvRange(0, count, 0, layers))
    )
    received.num_computed = count
    assert generated(other, [received], 1) == [reference]


@pytest.mark.parametrize("case", ["head-dim-80", "qwen2-groups-of-7"], indirect=True)
@pytest.mark.parametrize("build", BUILDS)
def test_every_build_keeps_the_bits_of_a_sequence(case: tuple[Path, list[int]], build: str) -> None:
    path, prompt = case
    best = load(path, "bfloat16")
    with using_build(build):
        runner, peer = load(path, "bfloat16"), load(path, "bfloat16")
    reference = alone(runner, prompt)
    for chunk in (1, 33):
        assert alone(runner, prompt, chunk) == reference
    check_prefix_hit_and_recompute(runner, prompt, reference)
    check_handoff(runner, peer, prompt, reference)
    ids = [other.info.identity.numerics_id for other in (runner, peer, best)]
    assert ids[0] == ids[1]
    assert f"native-{build}.r" in ids[0]
    if (build, BEST) == ("amx-twin", "amx"):
        assert alone(best, prompt) == reference  # tiles and vectors in turn, as the rows of a step have it
        assert ids[2] != ids[0]
    elif BEST == "amx":
        assert alone(best, prompt) != reference
        assert ids[2] != ids[0]


@pytest.mark.parametrize(
    ("length", "kernels", "dtype"),
    thinned(
        itertools.product(BORDERS, ("best", "torch"), DTYPES),
        zip(BORDERS, ["best", "torch"] * 3, AT_BORDERS, strict=True),
    ),
)
def test_prompts_that_end_at_a_border(tiny_path: Path, dtype: str, kernels: str, length: int) -> None:
    """The end of a block, of a query tile and of a key tile, and one token to either side; batches of 1 to 7 rows."""
    runner, prompt = load(tiny_path, dtype, **KERNELS[kernels]), prompt_of(length)
    reference = alone(runner, prompt)
    for chunk in (1, BLOCK_SIZE, 16):
        assert alone(runner, prompt, chunk) == reference
    for count in (2, 3, 5, 7):
        driver = Driver(runner, seed=count)
        others = [driver.stream(prompt_of(length + i)[1:]) for i in range(1, count)]
        streams = [*others, driver.stream(prompt, params=FULL)]
        assert generated(driver, streams, 1 << 20)[-1] == reference


def test_without_exact_mode_torch_fails_these_checks(long_path: Path, dtype: str) -> None:
    runner, prompt = load(long_path, dtype, **INEXACT), prompt_of(141)
    reference, chunked = alone(runner, prompt), alone(runner, prompt, 1)
    differing = [name for name, value in vars(reference).items() if value != vars(chunked)[name]]
    assert {"kv", "logits", "logprobs"} <= set(differing)
    with pytest.raises(AssertionError, match="Trace"):
        check_batch(runner, prompt, reference, reference, "")
    assert load(long_path, dtype).info.identity.numerics_id != runner.info.identity.numerics_id


@pytest.mark.parametrize(
    ("kernels", "dtype"),
    thinned(
        THREADED,
        [
            (kernels, dtype)
            for kernels, dtype in THREADED
            if kernels == "best" or not is_rare(list(KERNELS).index(kernels), dtype)
        ],
    ),
)
@pytest.mark.slow
def test_threads_change_no_bit_or_they_are_part_of_the_identity(long_path: Path, dtype: str, kernels: str) -> None:
    prompt, before = prompt_of(70), torch.get_num_threads()
    try:
        runners = [load(long_path, dtype, num_threads=threads, **KERNELS[kernels]) for threads in (1, 2)]
        traces = []
        for threads, runner in enumerate(runners, 1):
            torch.set_num_threads(threads)
            traces.append(alone(runner, prompt, 30))
            assert alone(runner, prompt) == traces[-1]
    finally:
        torch.set_num_threads(before)
    ids = [runner.info.identity.numerics_id for runner in runners]
    assert traces[0] == traces[1] or ids[0] != ids[1]
    assert ids[0] == ids[1] or kernels not in ("best", "layered") or "+gemm-" not in ids[0]
