"""Latent attention: a token keeps one vector per layer, and everything that holds or moves KV moves that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stratos.calculators.memory.kv import KvAsk, estimate_kv
from stratos.calculators.models.known import find_shape
from stratos.cli.data.model_check import check_model
from stratos.common.errors import InvalidAdapter, InvalidCheckpoint
from stratos.core.files.adapter_files import AdapterFiles
from stratos.core.kv import KvGeometry, KvRange
from stratos.core.requests.records import PrefillJob
from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.native import NativePagedAttention
from stratos.engine.attention.tiled import TorchTiledAttention
from stratos.engine.checkpoint.model_config import parse_decoder_config
from stratos.engine.core import EngineCore
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.lora.host_copy import check_shapes
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.settings import DiskTierConfig, SchedulerConfig, SpeculationConfig
from tests.support.reference.native_kernels import NATIVE_SETS, native_library
from tests.support.reference.quantised_models import quantise_folder
from tests.support.reference.tiny_models import FAMILIES, save_tiny
from tests.support.worlds.core_driver import Outcomes, make_core, make_request, run
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.plan_driver import BLOCK_SIZE, load_runner, teacher_forced

RANK, ROPE, LAYERS = 24, 8, 3
BLOCK_BYTES = LAYERS * (RANK + ROPE) * 4 * BLOCK_SIZE
PROMPT = [(i * 37 + 11) % 97 for i in range(41)]
DRAWN: dict[str, Any] = {"temperature": 0.9, "max_tokens": 20, "ignore_eos": True, "num_logprobs": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    prefix, changes = FAMILIES["deepseek-v3"]
    save_tiny(path, prefix, **changes)
    return path


@pytest.fixture(scope="module")
def alone(folder: Path) -> Outcomes:
    """One request in an engine of its own."""
    return run(make_core(folder, prefix_cache=False), make_request(PROMPT, **DRAWN))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_takes_its_vector_and_the_shared_key(folder: Path, dtype: str) -> None:
    runner = load_runner(folder, dtype=dtype)
    token_bytes = LAYERS * (RANK + ROPE) * runner.pages.tensor.itemsize
    assert runner.info.geometry.token_bytes == token_bytes
    assert runner.pages.tensor[0].nbytes == token_bytes * BLOCK_SIZE
    ask = KvAsk(weights=dtype, seq_len=BLOCK_SIZE, block_size=BLOCK_SIZE, on_cpu=True)
    sheet = estimate_kv(find_shape(str(folder)), ask)
    assert (sheet["token_bytes"], sheet["kv_bytes"]) == (token_bytes, runner.pages.tensor[0].nbytes)


def test_a_hand_off_to_other_blocks_goes_on_with_the_same_bits(folder: Path, alone: Outcomes) -> None:
    source = EngineCore(load_runner(folder), scheduler_config())
    target = EngineCore(load_runner(folder, block_size=8), scheduler_config(prefix_cache=False))
    request = make_request(PROMPT, **DRAWN)
    source.add_prefill(PrefillJob(leg="leg", token_ids=request.prompt_ids[:-1], terms=request.terms))
    source.step()
    assert target.reserve(request).num_skip_tokens == 0
    source.grant("leg")
    (event,) = source.step().prefill_events
    part = KvRange(0, event.num_tokens, 0, LAYERS)
    assert event.num_tokens == len(PROMPT) - 1
    payload = source.gather("leg", part)
    assert payload.nbytes == source.info.geometry.num_bytes(part) == part.num_cells * (RANK + ROPE) * 4
    target.scatter(request.key, part, payload)
    target.commit(request.key)
    assert run(target).choices == alone.choices


def test_drafts_change_no_bit(folder: Path, alone: Outcomes) -> None:
    speculation = SpeculationConfig(method="ngram", is_adaptive=False)
    core = EngineCore(load_runner(folder), SchedulerConfig(speculation=speculation))
    request = make_request(PROMPT, **DRAWN)
    assert run(core, request).choices == alone.choices


def test_another_process_goes_on_from_the_disk(folder: Path, tmp_path: Path, alone: Outcomes) -> None:
    outcomes = []
    for _ in range(2):
        runner = load_runner(folder, kv_pool_bytes=40 * BLOCK_BYTES, host_pool_bytes=24 * BLOCK_BYTES)
        disk = DiskTierConfig(directory=tmp_path, max_bytes=1 << 24, max_tenant_ratio=1.0)
        core = EngineCore(runner, scheduler_config(swap_costs=False, kv_watermark=1.0), disk=disk)
        assert core.disk is not None
        outcomes.append(on_disk(core))
        found = core.status().disk
        core.disk.close()
    assert found.num_loaded == found.num_hits > 0
    assert outcomes[0].choices == outcomes[1].choices == alone.choices


def on_disk(core: EngineCore) -> Outcomes:
    request = make_request(PROMPT, **DRAWN)
    request = replace(request, terms=replace(request.terms, tenant="t", kv_key=b"k" * 32))
    core.load_blocks(request.prompt_ids, request.terms)
    outcomes = run(core, request)
    run(core, *fillers())
    assert core.disk is not None
    core.disk.write()
    return outcomes


def fillers() -> Iterator[Any]:
    """Prompts that push blocks out of the pool."""
    for number in range(4):
        yield make_request([number + 5, *PROMPT[1:]], f"f{number}", max_tokens=20, ignore_eos=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("isa", NATIVE_SETS)
def test_values_are_read_from_keys(isa: str, dtype: torch.dtype) -> None:
    """Long contexts, many heads, and a size that fills no vector: the C++ kernel against torch, both one-sided."""
    heads, dim, lengths = 20, 76, ((0, 300), (299, 1), (40, 17))
    geometry = KvGeometry(
        num_layers=2, num_kv_heads=1, head_dim=dim, block_size=16, element_bytes=dtype.itemsize, num_sides=1
    )
    spans, begin = [], 0
    for index, (start, count) in enumerate(lengths):
        spans.append(RowSpan(begin, count, start, tuple(range(20 * index, 20 * index + 20))))
        begin += count
    torch.manual_seed(0)
    qkv, past = torch.randn(begin, (heads + 1) * dim, dtype=dtype), torch.randn(60, 2, 1, 1, 16, dim, dtype=dtype)
    angles = torch.rand(begin, dim // 2)
    rope = RopeRows(angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), 1))
    results = []
    for kind in ("native", "torch"):
        pages = KvPages(geometry, 60, dtype, torch.device("cpu"))
        pages.tensor.copy_(past)
        kernel: Any = (
            NativePagedAttention(native_library(isa), pages, heads, [None, None])
            if kind == "native"
            else TorchTiledAttention(pages, heads, [None, None])
        )
        results.append((kernel.forward(1, qkv.clone(), rope, None, kernel.prepare(spans)), pages.tensor))
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    assert torch.allclose(results[0][0].float(), results[1][0].float(), atol=tolerance)
    assert torch.allclose(results[0][1].float(), results[1][1].float(), atol=tolerance)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kv_dtype": "int8"}, "kv_dtype int8 is not supported with latent attention"),
        ({"kv_dtype": "fp8"}, "kv_dtype fp8 is not supported with latent attention"),
        ({"triton_kernels": True}, "not yet on a GPU"),
        ({"attention_window": 32}, "attention_window cannot be set for a model with latent attention"),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(folder: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=text):
        load_runner(folder, **settings)


@pytest.mark.parametrize(
    ("case", "changes", "text"),
    [
        ("deepseek-v3", {"kv_lora_rank": 23}, "kv_lora_rank"),
        ("deepseek-v3", {"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
        ("deepseek-v3", {"scoring_func": "softmax"}, "scoring_func"),
        ("deepseek-v3", {"topk_method": "greedy"}, "topk_method"),
        ("deepseek-v3", {"mlp_bias": True}, "mlp_bias"),
        ("deepseek-v3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("deepseek-v3", {"num_attention_heads": 512}, "num_attention_heads"),
        ("deepseek-v2", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("deepseek-v2", {"topk_method": "noaux_tc"}, "topk_method"),
        ("deepseek-v2", {"moe_layer_freq": 2}, "moe_layer_freq"),
    ],
)
def test_a_field_that_is_not_computed_is_refused_by_name(case: str, changes: dict[str, Any], text: str) -> None:
    prefix, fields = FAMILIES[case]
    sizes = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 2}
    stated = {**sizes, "num_attention_heads": 6, "max_position_embeddings": 128, **fields}
    stated |= {"architectures": [f"{prefix}ForCausalLM"]}
    parse_decoder_config(stated)
    with pytest.raises(InvalidCheckpoint, match=text):
        parse_decoder_config(stated | changes)


def test_a_checkpoint_in_fp8_is_the_floats_that_its_codes_stand_for(tmp_path: Path) -> None:
    """Blocks, as DeepSeek V3 is published; keys and values from the latent vector are floats in memory."""
    prefix, changes = FAMILIES["deepseek-v3"]
    sizes = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "num_attention_heads": 4}
    latent = {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
    for name in ("floats", "codes"):
        save_tiny(tmp_path / name, prefix, **{**changes, **sizes, **latent})
    numbers = quantise_folder(tmp_path / "codes", "fp8-block")
    kept = load_file(tmp_path / "floats" / "model.safetensors")
    save_file({name: numbers[name].contiguous() for name in kept}, tmp_path / "floats" / "model.safetensors")
    runners = [load_runner(tmp_path / name) for name in ("floats", "codes")]
    assert "fp8" in runners[1].info.identity.numerics_id
    theirs, ours = (teacher_forced(runner, PROMPT, 7) for runner in runners)
    assert (theirs - ours).abs().max() < 1e-3


def test_the_check_before_a_download_knows_it(folder: Path) -> None:
    lines = check_model(folder)
    assert f"KV: {LAYERS * (RANK + ROPE)} elements per token" in lines
    assert any("latent attention" in line for line in lines)


def test_an_adapter_is_refused_by_name(folder: Path) -> None:
    config = parse_decoder_config(json.loads((folder / "config.json").read_text()))
    files = AdapterFiles(
        path=folder, digest="d", rank=1, alpha=1.0, use_rslora=False, target_modules=("o_proj",), num_bytes=0, shapes={}
    )
    with pytest.raises(InvalidAdapter, match="latent attention"):
        check_shapes(files, config)
