"""Reading model folders: both spellings of the rotary settings, shards, and refusals that name the culprit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.model_config import parse_decoder_config
from stratos.engine.checkpoint.tensor_names import full_names
from tests.support.reference.tiny_models import BASE, LLAMA3_ROPE, save_tiny_llama
from tests.support.worlds.plan_driver import Driver, load_runner

CONFIG: dict[str, Any] = {**BASE, "architectures": ["LlamaForCausalLM"]}


def change(folder: Path, edit: Any) -> None:
    """Rewrite the weights of a folder."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_llama(tmp_path, tie_word_embeddings=False)
    return tmp_path


def test_old_and_new_rotary_settings_mean_the_same() -> None:
    scaling = {k: v for k, v in LLAMA3_ROPE.items() if k != "rope_theta"}
    new = parse_decoder_config({**CONFIG, "rope_parameters": LLAMA3_ROPE})
    old = parse_decoder_config({**CONFIG, "rope_theta": 500.0, "rope_scaling": scaling})
    assert new.rope == old.rope
    assert new.rope.variant == "llama3:500.0:4.0:1.0:4.0:32"
    assert parse_decoder_config(CONFIG).rope.variant == "default:10000.0"
    assert parse_decoder_config({**CONFIG, "rope_theta": 5e5, "rope_scaling": None}).rope.theta == 5e5


def test_head_dim_is_derived_when_absent() -> None:
    without = {k: v for k, v in CONFIG.items() if k != "head_dim"}
    assert parse_decoder_config(without).head_dim == 8
    assert parse_decoder_config({**without, "num_key_value_heads": None}).num_kv_heads == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported; supported: LlamaForCausalLM"),
        ({"architectures": None, "model_type": "bert"}, "'bert' is not supported"),
        ({"num_key_value_heads": 4}, "multiple of num_key_value_heads"),
        ({"num_attention_heads": 514}, "at most 256 query heads may share a KV head"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer"),
        ({"hidden_size": True}, "hidden_size must be a positive integer"),
        ({"head_dim": 7}, "even head_dim"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization method None"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1.0}}, "factor must be a positive number"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1.0}}, "rope type 'spiral'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor must be"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=message):
        parse_decoder_config({**CONFIG, **changes})


def test_shards_load_like_one_file(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path / "one")
    save_tiny_llama(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    tokens = []
    for name in ("one", "many"):
        driver = Driver(load_runner(tmp_path / name))
        stream = driver.stream([5, 6, 7])
        driver.generate([stream], 8)
        tokens.append(stream.tokens)
    assert tokens[0] == tokens[1]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(InvalidCheckpoint, match=shard.name):
        load_runner(tmp_path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "lacks tensor model.layers.1.mlp.up_proj.weight"),
        (lambda t: t.update({"model.norm.weight": torch.ones(3)}), r"model.norm.weight has shape \[3\]"),
        (lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(3)}), "does not account for"),
        (lambda t: t.update({"lm_head.weight": t["lm_head.weight"].to(torch.int32)}), "lm_head.weight has type I32"),
    ],
)
def test_a_wrong_tensor_is_named(folder: Path, edit: Any, message: str) -> None:
    change(folder, edit)
    with pytest.raises(InvalidCheckpoint, match=message):
        load_runner(folder)


def test_two_names_of_one_tensor_of_the_text_are_refused() -> None:
    names = ["language_model.model.norm.weight", "vision_tower.norm.weight", "model.language_model.norm.weight"]
    assert full_names(names[:2], is_text_part=True) == {"model.norm.weight": names[0]}
    with pytest.raises(InvalidCheckpoint, match="are one in the text part"):
        full_names(names, is_text_part=True)


def test_broken_files_and_settings_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="dtype 'float8'"):
        load_runner(folder, dtype="float8")
    with pytest.raises(InvalidCheckpoint, match="holds no KV block"):
        load_runner(folder, kv_pool_bytes=100)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InvalidCheckpoint, match=r"model\.safetensors is not a safetensors file"):
        load_runner(folder)


def test_facts_of_a_loaded_model(folder: Path) -> None:
    info = load_runner(folder).info
    assert (info.vocab_size, info.max_model_len, info.eos_token_ids) == (97, 128, (0, 4))
    assert info.geometry.token_bytes == 2 * 2 * 2 * 10 * 4
    assert info.num_blocks == (2 << 20) // (info.geometry.token_bytes * 4)
    assert info.identity.rope_variant == "default:10000.0"
    off = {"prepacked_gemm": False, "native_kernels": False}
    plain = load_runner(folder, **off).info.identity.numerics_id
    assert f"/torch-{torch.__version__}/float32/torch-tiled.r" in plain
    assert plain.endswith("+exact+threads-1")
    batched = load_runner(folder, **off, exact=False).info.identity.numerics_id
    names = [name.partition(".r")[0] for name in batched.rpartition("/")[2].split("+")]
    assert (names[:3], names[-1]) == (["torch-paged", "torch", "aten"], "batched")
    packed = load_runner(folder, native_gemm=False).info.identity.numerics_id
    assert "+onednn-packed" in packed
    assert (packed != info.identity.numerics_id) == ("native" in info.identity.numerics_id), "where it is built"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    assert load_runner(folder).info.identity.model_digest != info.identity.model_digest


def test_weights_that_float16_cannot_hold_are_refused(folder: Path) -> None:
    change(folder, lambda t: t.update({"model.norm.weight": t["model.norm.weight"] * 0 + 70_000.0}))
    load_runner(folder, dtype="bfloat16")
    with pytest.raises(InvalidCheckpoint, match=r"model\.norm\.weight reaches 7e.04, which float16 cannot hold"):
        load_runner(folder, dtype="float16")
