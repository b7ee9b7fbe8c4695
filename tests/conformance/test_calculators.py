"""Sizes by formula against the engine: every family that it has, every type, windows, and the memory it takes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.calculators.hardware.devices import find_device
from stratos.calculators.memory.gpu_memory import RUNTIME, MemoryAsk, estimate_gpu_memory, weight_steps
from stratos.calculators.memory.kv import KvAsk, estimate_kv
from stratos.calculators.memory.schemes import find_scheme
from stratos.calculators.models.known import find_shape
from stratos.calculators.models.shape import ModelShape
from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.kv import KvGeometry
from stratos.engine.kv_cache.window import make_window
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig, SpeculationConfig
from stratos.engine.sizing.case import Room, SizingCase
from stratos.engine.sizing.fit import draft_config
from stratos.engine.sizing.need import DTYPE_BYTES, ModelNeed, read_need
from stratos.engine.sizing.plan import plan_engine
from tests.support.reference.quantised_models import quantise_folder
from tests.support.reference.tiny_models import FAMILIES, save_tiny
from tests.support.worlds.engine_settings import runner_config
from tests.support.worlds.plan_driver import load_runner

BATCH, SEQ_LEN, BLOCK = 3, 41, 4
ON_CPU = [("fp8", True), ("int8", True)]
"""Codes with scales beside them."""

BY_ROWS = [("int8", "int8"), ("int8+head", "int8+head"), ("llm-int8", "llm-int8")]
IN_GROUPS = [("fp8", "fp8"), ("int4-g32", "int4"), ("int4-g32+head", "int4+head"), ("nf4", "nf4"),
             ("mxfp4-f32", "mxfp4")]  # fmt: skip
OF_FILES = [("nvfp4", "compressed-nvfp4"), ("nvfp4", "modelopt-nvfp4"), ("nf4", "nf4"), ("nf4", "nf4-double"),
            ("mxfp4-f32", "compressed-mxfp4"), ("llm-int8", "llm-int8"), ("int8", "compressed-w8a8"),
            ("fp8", "modelopt-fp8")]  # fmt: skip
WHOLE_GROUPS: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix, changes = FAMILIES[request.param]
    path: Path = tmp_path_factory.mktemp(request.param)
    save_tiny(path, prefix, **changes)
    return path


@cache
def shape_of(folder: Path) -> ModelShape:
    return find_shape(str(folder))


def is_latent(folder: Path) -> bool:
    """Its KV is never codes."""
    return shape_of(folder).latent_size > 0


@cache
def need_of(folder: Path) -> ModelNeed:
    return read_need(folder)


def test_weights_are_those_that_the_engine_counts(folder: Path) -> None:
    for dtype in DTYPE_BYTES:
        weights = weight_steps(shape_of(folder), find_scheme(dtype))[-1].value
        assert weights == need_of(folder).weight_bytes(dtype), dtype


def test_quantised_weights_are_those_that_the_engine_counts(folder: Path) -> None:
    """Layers that no whole groups fill stay floats."""
    for scheme, quantization in (*BY_ROWS, *IN_GROUPS):
        if shape_of(folder).state_layers:
            with pytest.raises(InvalidCheckpoint, match="state"):
                load_runner(folder, quantization=quantization)
            continue
        weights = weight_steps(shape_of(folder), find_scheme(scheme))[-1].value
        counted = read_need(folder, quantization).weight_bytes("bfloat16")
        assert weights == pytest.approx(counted, rel=1e-3), scheme


@pytest.mark.parametrize("family", ["llama", "qwen3", "mixtral", "qwen3-moe"])
@pytest.mark.parametrize(("scheme", "quantization"), IN_GROUPS)
def test_weights_in_groups_are_those_that_the_engine_counts(
    tmp_path: Path, family: str, scheme: str, quantization: str
) -> None:
    """Of layers that whole groups fill, as those of models that people use."""
    prefix, changes = FAMILIES[family]
    save_tiny(tmp_path, prefix, **{**changes, **WHOLE_GROUPS})
    weights = weight_steps(find_shape(str(tmp_path)), find_scheme(scheme))[-1].value
    assert weights == pytest.approx(read_need(tmp_path, quantization).weight_bytes("bfloat16"), rel=1e-3)


@pytest.mark.parametrize(("scheme", "layout"), OF_FILES)
def test_weights_of_quantised_files_are_those_that_the_engine_counts(tmp_path: Path, scheme: str, layout: str) -> None:
    """A layer of each file stays floats, which no formula knows: it is added."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 32}
    save_tiny(tmp_path, "Llama", **sizes, num_key_value_heads=4)
    shape, chosen = find_shape(str(tmp_path)), find_scheme(scheme)
    bits = chosen.bits + chosen.scale_bits / chosen.group_size
    weights = weight_steps(shape, chosen)[-1].value + 256 * 256 * (2 - bits / 8)
    quantise_folder(tmp_path, layout)
    assert weights == pytest.approx(read_need(tmp_path).weight_bytes("bfloat16"), rel=1e-2)


def test_a_token_takes_what_the_engine_counts(folder: Path) -> None:
    kept = [("auto", False), ("auto", True), ("fp8", False), *([] if is_latent(folder) else ON_CPU)]
    for dtype, (kv_dtype, on_cpu) in itertools.product(DTYPE_BYTES, kept):
        sheet = estimate_kv(shape_of(folder), KvAsk(weights=dtype, kv_dtype=kv_dtype, on_cpu=on_cpu))
        counted = need_of(folder).token_bytes(dtype, kv_dtype, has_scales=on_cpu)
        assert sheet["token_bytes"] == counted, (dtype, kv_dtype, on_cpu)


@pytest.mark.parametrize(("kv_dtype", "on_cpu"), ON_CPU)
def test_a_block_of_codes_takes_the_pages_that_the_engine_allocates(folder: Path, kv_dtype: str, on_cpu: bool) -> None:
    ask = KvAsk(weights="float32", kv_dtype=kv_dtype, seq_len=BLOCK, block_size=BLOCK, on_cpu=on_cpu)
    if is_latent(folder):
        with pytest.raises(InvalidCheckpoint, match="latent attention"):
            load_runner(folder, kv_dtype=kv_dtype)
        with pytest.raises(BadRequest, match="latent"):
            estimate_kv(shape_of(folder), ask)
        return
    pages = load_runner(folder, block_size=BLOCK, kv_dtype=kv_dtype).pages.tensor
    assert estimate_kv(shape_of(folder), ask)["kv_bytes"] == pages[0].nbytes


def test_a_batch_takes_the_pages_that_the_engine_allocates(folder: Path) -> None:
    runner = load_runner(folder, block_size=BLOCK)
    geometry: KvGeometry = runner.info.geometry
    blocks = math.ceil(SEQ_LEN / BLOCK)
    scheduler = SchedulerConfig(max_num_batched_tokens=6)
    if window := make_window(runner.info, scheduler):
        blocks = min(blocks, window.max_blocks)
    pages = KvPages(geometry, BATCH * blocks, torch.float32, torch.device("cpu"))
    ask = KvAsk(weights="float32", batch=BATCH, seq_len=SEQ_LEN, block_size=BLOCK, step_tokens=6)
    assert estimate_kv(shape_of(folder), ask)["kv_bytes"] == pages.tensor.nbytes


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gpt-oss", "olmo3", "qwen2-mixed-windows"])
def test_on_a_cpu_window_layers_take_the_pages_that_the_engine_holds(tmp_path: Path, family: str) -> None:
    prefix, changes = FAMILIES[family]
    save_tiny(tmp_path, prefix, **changes)
    scheduler = SchedulerConfig(max_num_batched_tokens=6)
    settings = runner_config(model_path=tmp_path, block_size=BLOCK, kv_pool_bytes=2 << 20, num_threads=1)
    runner = TorchRunner.load(settings, scheduler=scheduler)
    groups, window, blocks = runner.info.groups, make_window(runner.info, scheduler), math.ceil(SEQ_LEN / BLOCK)
    assert groups is not None
    assert window is not None
    num_pages = groups.num_full * blocks + groups.num_window * min(blocks, window.max_blocks)
    ask = KvAsk(weights="float32", seq_len=SEQ_LEN, block_size=BLOCK, step_tokens=6, on_cpu=True)
    assert estimate_kv(find_shape(str(tmp_path)), ask)["kv_bytes"] == num_pages * runner.pages.tensor[0].nbytes


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_parts_are_those_that_the_engine_plans_with(folder: Path, device: str) -> None:
    scheduler = SchedulerConfig(max_num_seqs=7).for_device(device)
    room = Room(is_gpu=device == "cuda", total_bytes=1 << 34, free_bytes=1 << 34)
    case = SizingCase(need=need_of(folder), room=room, config=RunnerConfig(), scheduler=scheduler)
    sheet = estimate_gpu_memory(shape_of(folder), MemoryAsk(max_num_seqs=7, on_cpu=device == "cpu"))
    parts = case.fixed_bytes("bfloat16")
    states = {"recurrent states": sheet["states_bytes"]} if shape_of(folder).state_layers else {}
    assert {"weights": sheet["weights_bytes"], RUNTIME: sheet["runtime_bytes"], **states} == parts
    assert sheet["total_bytes"] == sum(parts.values()) + sheet["kv_bytes"]


def test_the_pool_of_a_device_is_the_engines(folder: Path) -> None:
    device = find_device("", memory_gb=16, bandwidth_gb_s=1, tflops=1)
    room = Room(is_gpu=True, total_bytes=device.memory_bytes, free_bytes=device.memory_bytes)
    config = RunnerConfig(dtype="bfloat16")
    case = SizingCase(need=need_of(folder), room=room, config=config, scheduler=SchedulerConfig())
    sheet = estimate_gpu_memory(shape_of(folder), MemoryAsk(), device)
    assert sheet["pool_bytes"] == pytest.approx(plan_engine(case).kv_pool_bytes, rel=1e-4)


@pytest.mark.parametrize(("quantization", "draft"), [("auto", "the same"), ("int4", "self")])
def test_a_draft_model_takes_what_the_engine_plans_with(folder: Path, quantization: str, draft: str) -> None:
    scheduler = SchedulerConfig(max_num_seqs=7, speculation=speculation_of(folder, draft)).for_device("cpu")
    room = Room(is_gpu=False, total_bytes=1 << 34, free_bytes=1 << 34)
    case = SizingCase(need=need_of(folder), room=room, config=RunnerConfig(), scheduler=scheduler)
    parts = replace(case, draft=read_need(folder, quantization)).fixed_bytes("bfloat16")
    ask = MemoryAsk(max_num_seqs=7, on_cpu=True, draft=str(folder) if draft == "the same" else draft)
    sheet = estimate_gpu_memory(shape_of(folder), ask)
    drafts = sheet["draft_weights_bytes"] + sheet["draft_kv_bytes"]
    assert drafts == pytest.approx(parts["draft model and its KV"], rel=1e-3)
    assert sheet["total_bytes"] == pytest.approx(sum(parts.values()) + sheet["kv_bytes"], rel=1e-3)


@pytest.mark.parametrize("draft", ["the same", "self"])
def test_the_pool_of_a_draft_model_is_that_of_its_runner(tmp_path: Path, draft: str) -> None:
    save_tiny(tmp_path, "Llama")
    scheduler = SchedulerConfig(max_num_seqs=7, speculation=speculation_of(tmp_path, draft))
    runner = draft_config(RunnerConfig(model_path=tmp_path, dtype="bfloat16"), scheduler)
    assert runner is not None
    ask = MemoryAsk(max_num_seqs=7, on_cpu=True, draft=str(tmp_path) if draft == "the same" else draft)
    assert estimate_gpu_memory(find_shape(str(tmp_path)), ask)["draft_kv_bytes"] == runner.kv_pool_bytes


def speculation_of(folder: Path, draft: str) -> SpeculationConfig:
    """A model of that folder drafts, or the model itself."""
    return SpeculationConfig(method="self") if draft == "self" else SpeculationConfig(method="draft", model_path=folder)


def test_the_pool_of_a_device_is_less_by_its_draft_model(folder: Path) -> None:
    device = find_device("", memory_gb=16, bandwidth_gb_s=1, tflops=1)
    alone, beside = (
        estimate_gpu_memory(shape_of(folder), MemoryAsk(draft=draft), device) for draft in ("", str(folder))
    )
    taken = beside["draft_weights_bytes"] + beside["draft_kv_bytes"]
    assert alone["pool_bytes"] - beside["pool_bytes"] == pytest.approx(taken)


@pytest.mark.parametrize("change", [{"on_cpu": False}, {"weights": "nf4"}])
def test_a_model_that_cannot_draft_for_itself_is_refused(folder: Path, change: dict[str, Any]) -> None:
    ask = replace(MemoryAsk(on_cpu=True, draft="self"), **change)
    with pytest.raises(BadRequest, match="draft: a model drafts for itself"):
        estimate_gpu_memory(shape_of(folder), ask)
