"""``stratos models check``: what is served is told by name, and missing tensors before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratos.cli.data.model_check import INDEX_NAME, check_model
from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.model_config import parse_decoder_config
from stratos.engine.checkpoint.tensor_names import expected_shapes

CONFIG: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "vocab_size": 97, "hidden_size": 64, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 512, "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


def write(folder: Path, config: dict[str, Any], names: list[str]) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if names:
        index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
        (folder / INDEX_NAME).write_text(json.dumps(index), encoding="utf-8")
    return folder


@pytest.mark.parametrize("is_coded", [False, True])
def test_a_complete_model_is_served_in_either_layout(tmp_path: Path, is_coded: bool) -> None:
    names = [name for name, _ in expected_shapes(parse_decoder_config(CONFIG), is_coded=is_coded)]
    lines = check_model(write(tmp_path, CONFIG, names))
    assert lines[0] == "GptOssForCausalLM: served"
    assert "layers: 2, 1 with a window of 128" in lines
    assert any(line.startswith("devices: a CPU alone") for line in lines)
    assert lines[-1].startswith("tensors: all")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    names = [name for name, _ in expected_shapes(parse_decoder_config(CONFIG))]
    names.remove("model.layers.1.self_attn.sinks")
    with pytest.raises(
        InvalidCheckpoint, match=r"1 tensors are missing, among them model\.layers\.1\.self_attn\.sinks"
    ):
        check_model(write(tmp_path, CONFIG, names))


def test_a_configuration_alone_is_enough(tmp_path: Path) -> None:
    assert "names were not compared" in check_model(write(tmp_path, CONFIG, []) / "config.json")[-1]


def test_an_unknown_architecture_is_told_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="'BloomForCausalLM' is not supported; supported: LlamaForCausalLM, "):
        check_model(write(tmp_path, {**CONFIG, "architectures": ["BloomForCausalLM"]}, []))
