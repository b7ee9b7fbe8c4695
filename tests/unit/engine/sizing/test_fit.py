"""A configuration fitted to a model folder and a device; what the device alone decides; the text of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from stratos.engine.settings import RunnerConfig, SchedulerConfig, SpeculationConfig
from stratos.engine.sizing.case import (
    CPU_LOGIT_COPIES,
    CPU_RUNTIME_BYTES,
    GPU_LOGIT_COPIES,
    GPU_RUNTIME_BYTES,
    GRAPH_ROW_BYTES,
    Room,
    SizingCase,
)
from stratos.engine.sizing.device import device_choices, engine_process_for, keeps_codes, kernels_choice
from stratos.engine.sizing.fit import cpu_room, fitted, plan_of
from stratos.engine.sizing.machine import Machine, resident_bytes
from stratos.engine.sizing.need import ModelNeed, read_need
from stratos.engine.sizing.plan import SizingChoice, size
from stratos.engine.sizing.report import choices_block
from tests.support.reference.gguf_models import save_gguf
from tests.support.reference.native_kernels import NATIVE_SETS
from tests.support.reference.quantised_models import SHAPE, save_quantised
from tests.support.reference.tiny_models import UNTIED, save_tiny, save_tiny_llama
from tests.support.worlds.engine_settings import runner_config, scheduler_config
from tests.support.worlds.plan_driver import load_runner

ROOM = Room(is_gpu=False, total_bytes=8 << 30, free_bytes=4 << 30)
GPU_ROOM = Room(is_gpu=True, total_bytes=8 << 30, free_bytes=8 << 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(path)
    return path


def test_needs_are_what_the_loaded_model_takes(folder: Path) -> None:
    need, runner = read_need(folder), load_runner(folder)
    assert need.token_bytes("float32") == runner.info.geometry.token_bytes
    assert need.max_model_len == runner.info.max_model_len
    config = json.loads((folder / "config.json").read_text())
    assert need.num_weights > config["vocab_size"] * config["hidden_size"]
    assert need.weight_bytes("float32") > need.weight_bytes("bfloat16") > need.weight_bytes("float32") / 2.1


def test_a_runner_takes_what_was_fitted(folder: Path) -> None:
    config = RunnerConfig(model_path=folder, block_size=4, num_threads=1)
    plan = plan_of(config, SchedulerConfig(max_num_seqs=2), ROOM)
    taken = fitted(config, plan)
    assert (taken.dtype, taken.max_model_len) == ("float32", read_need(folder).max_model_len)
    runner = load_runner(folder, kv_pool_bytes=0)
    assert runner.info.num_blocks * runner.info.geometry.token_bytes * 4 == runner.plan.kv_pool_bytes
    assert runner.info.identity.kv_dtype == runner.plan.dtype == "float32"
    assert load_runner(folder, max_model_len=40).info.max_model_len == 40


@pytest.mark.parametrize(
    ("name", "codes", "scales", "scale_bytes"),
    [
        ("compressed-mxfp4", "weight_packed", "weight_scale", 4),
        ("compressed-nvfp4", "weight_packed", "weight_scale", 1),
        ("modelopt-nvfp4", "proj.weight", "weight_scale", 1),
        ("nf4", "proj.weight", "absmax", 4),
        ("nf4-double", "proj.weight", "weight.absmax", 4),
    ],
)
def test_scales_count_as_they_are_in_memory(
    tmp_path: Path, name: str, codes: str, scales: str, scale_bytes: int
) -> None:
    save_quantised(tmp_path, name)
    tensors = load_file(tmp_path / "model.safetensors")
    floats = "1.self_attn.o_proj.weight"
    num_codes, num_scales = (
        sum(tensor.numel() for key, tensor in tensors.items() if key.endswith(end) and not key.endswith(floats))
        for end in (codes, scales)
    )
    assert read_need(tmp_path).code_bytes == num_codes + scale_bytes * num_scales > num_codes


@pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")
@pytest.mark.parametrize("kind", ["nf4", "llm-int8", "int4+head", "int8+head"])
def test_what_is_quantised_at_load_takes_what_was_planned(tmp_path: Path, kind: str) -> None:
    save_tiny(tmp_path, "Llama", **SHAPE)
    runner, need = load_runner(tmp_path, quantization=kind, dtype="bfloat16"), read_need(tmp_path, kind)
    assert runner.info.step_weight_bytes == pytest.approx(need.read_bytes("bfloat16"), rel=0.05)
    assert read_need(tmp_path, "int4+head").read_bytes("bfloat16") < read_need(tmp_path, "int4").read_bytes("bfloat16")


def test_codes_are_planned_where_there_are_products_for_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(path: Path, rounding: str = "auto", *, keeps_codes: bool) -> ModelNeed:
        asked.append(keeps_codes)
        return read_need(path, rounding, keeps_codes=keeps_codes)

    monkeypatch.setattr("stratos.engine.sizing.fit.read_need", noted)
    drafting = SchedulerConfig(speculation=SpeculationConfig(method="draft", model_path=folder))
    for native_kernels, room in ((True, ROOM), (False, ROOM), (True, GPU_ROOM)):
        plan_of(runner_config(model_path=folder, native_kernels=native_kernels), drafting, room)
    assert asked == [bool(NATIVE_SETS)] * 2 + [False] * 4, "the model, then its draft"


@pytest.mark.parametrize("switch", ["", "native_kernels", "native_gemm", "kept_codes"])
def test_the_plan_counts_what_the_loader_keeps(tmp_path: Path, switch: str) -> None:
    save_gguf(tmp_path, {"": "Q4_K"})
    switches = {switch: False} if switch else {}
    runner = load_runner(tmp_path / "folder", dtype="bfloat16", **switches)
    is_kept = keeps_codes(runner_config(**switches), is_gpu=False)
    assert is_kept is (not switch and bool(NATIVE_SETS))
    need = read_need(tmp_path / "folder", keeps_codes=is_kept)
    assert runner.info.step_weight_bytes == need.read_bytes("bfloat16")
    (weights,) = [choice for choice in runner.plan.choices if choice.name == "weights"]
    assert weights.value == size(need.weight_bytes("bfloat16"))


def test_codes_do_not_change_the_type_of_a_file_and_only_what_is_widened_is_named(tmp_path: Path) -> None:
    untied = save_kinds(tmp_path / "untied", {"": "Q4_K", "token_embd": "F16"}, **UNTIED)
    assert {read_need(untied, keeps_codes=keeps).stored_dtype for keeps in (True, False)} == {"bfloat16"}
    assert (read_need(untied).widened, read_need(untied, keeps_codes=False).widened) == ((), ("Q4_K",))
    kept, floats = (read_need(untied, keeps_codes=keeps) for keeps in (True, False))
    assert (kept.float_bytes, floats.load_bytes) == (floats.float_bytes, 0)
    assert kept.load_bytes > 0
    tied = save_kinds(tmp_path / "tied", {"": "Q4_K", "ffn_up": "Q5_1", "token_embd": "Q6_K"})
    assert read_need(tied).widened == ("Q5_1", "the embedding (Q6_K)")
    assert read_need(tied, keeps_codes=False).widened == ("Q4_K", "Q5_1", "Q6_K")
    assert read_need(tied).float_bytes == read_need(tied, keeps_codes=False).float_bytes


def save_kinds(path: Path, kinds: dict[str, str], **changes: Any) -> Path:
    path.mkdir()
    save_gguf(path, kinds, **changes)
    return path / "folder"


def test_what_the_process_has_of_its_run_time_is_not_counted_twice() -> None:
    machine = Machine(
        cpu_name="", cpu_flags=frozenset(), num_cores=1, num_sockets=1, total_bytes=8 << 30, available_bytes=1 << 30,
        limited_by="memory",
    )  # fmt: skip
    assert cpu_room(machine, 2).share_bytes == 1 << 29
    assert cpu_room(machine, taken_bytes=100 << 20).free_bytes == (1 << 30) + (100 << 20)
    assert cpu_room(machine, taken_bytes=5 << 30).free_bytes == (1 << 30) + CPU_RUNTIME_BYTES
    assert resident_bytes() > 10 << 20


def case_of(folder: Path, room: Room, config: RunnerConfig, transport_bytes: int = 0) -> SizingCase:
    scheduler = SchedulerConfig(max_num_seqs=7, kv_watermark=0.8)
    need = read_need(folder)
    return SizingCase(need=need, room=room, config=config, scheduler=scheduler, transport_bytes=transport_bytes)


def test_host_memory_counts_on_a_cpu_alone(folder: Path) -> None:
    config = RunnerConfig(host_pool_bytes=1 << 20)
    on_cpu, on_gpu = case_of(folder, ROOM, config, 5), case_of(folder, GPU_ROOM, config)
    assert on_cpu.fixed_bytes("float32")["staging and host pool"] == (1 << 20) + 5
    assert on_cpu.fixed_bytes("float32")["run-time and activations"] == CPU_RUNTIME_BYTES + activations(folder, 512)
    assert on_gpu.fixed_bytes("float32").keys() == {"weights", "run-time and activations"}
    assert on_gpu.adapter_bytes("float32") > 0
    graphs = config.max_graph_batch * (2 * GRAPH_ROW_BYTES + 4 * read_need(folder).vocab_size)
    more_logits = (GPU_LOGIT_COPIES - CPU_LOGIT_COPIES) * 7 * read_need(folder).vocab_size * 4
    expected = GPU_RUNTIME_BYTES + graphs + activations(folder, 2048) + more_logits
    assert on_gpu.fixed_bytes("float32")["run-time and activations"] == expected
    assert case_of(folder, GPU_ROOM, config, 7).fixed_bytes("float32")["KV rings"] == 7


def activations(folder: Path, num_tokens: int) -> int:
    """Bytes in float32 of one step, and of the logits of 7 sequences twice."""
    need = read_need(folder)
    return num_tokens * need.widest * 4 * 4 + 2 * 7 * need.vocab_size * 4


def test_steps_with_adapters_have_graphs_of_their_own_where_they_are_captured(folder: Path) -> None:
    def taken(**switches: int) -> int:
        return case_of(folder, GPU_ROOM, runner_config(**switches)).fixed_bytes("float32")["run-time and activations"]

    one_set = RunnerConfig().max_graph_batch * GRAPH_ROW_BYTES
    for switches in (
        {"grouped_lora": False},
        {"sorted_adapters": False},
        {"exact_kernels": True},
        {"max_resident_adapters": 0},
    ):
        assert taken() - taken(**switches) == one_set
    assert taken() - taken(cuda_graphs=False) == 2 * one_set + RunnerConfig().max_graph_batch * 4 * (
        read_need(folder).vocab_size
    )


def test_the_device_decides_what_is_not_set() -> None:
    assert (engine_process_for("cpu"), engine_process_for("cuda")) == ("thread", "process")
    assert [c.value for c in device_choices("cpu", SchedulerConfig())] == ["512", "off", "thread"]
    assert [c.value for c in device_choices("cuda", SchedulerConfig())] == ["2,048", "on", "process"]
    chosen = device_choices("cuda", scheduler_config(max_num_batched_tokens=64, overlap=False), "thread")
    assert chosen == tuple(SizingChoice(name, value, "as set") for name, value in (
        ("token budget", "64"), ("overlap", "off"), ("engine", "thread"),
    ))  # fmt: skip


def test_the_build_of_the_kernels_says_with_which_machines_kv_is_exchanged(tmp_path: Path) -> None:
    amx = frozenset(
        (
            "avx2",
            "fma",
            "f16c",
            "avx512f",
            "avx512bw",
            "avx512vl",
            "avx512dq",
            "avx512_bf16",
            "avx512_vnni",
            "amx_tile",
            "amx_bf16",
            "amx_int8",
        )
    )
    config = RunnerConfig()
    none_built = kernels_choice(config, amx, tmp_path)
    assert (none_built.value, "not built" in none_built.reason) == ("torch", True)
    for name in ("amx", "avx512-bf16"):
        (tmp_path / f"kernels-{name}.so").touch()
    taken = kernels_choice(config, amx, tmp_path)
    assert taken.value == "amx"
    assert "set native_isa to avx512-bf16 on all" in taken.reason
    masked = kernels_choice(dataclasses.replace(config, native_isa="avx512-bf16"), amx, tmp_path)
    assert masked.value == "avx512-bf16"
    assert "ARM" in kernels_choice(config, frozenset(("asimd",)), tmp_path).reason
    assert "no instruction set" in kernels_choice(config, frozenset(("sse2",)), tmp_path).reason


def test_the_block_has_a_line_for_each_choice() -> None:
    text = choices_block("title", (SizingChoice("a", "1", "why"), SizingChoice("longer", "22", "because")))
    assert text == "title\n  a       1   why\n  longer  22  because"
