"""Shapes of models: published counts of parameters, and refusals that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratos.calculators.models.known import find_shape, known_models
from stratos.common.errors import BadRequest, InvalidCheckpoint

BILLIONS = {
    "llama-2-7b": 6.738, "llama-2-13b": 13.016, "llama-2-70b": 68.977, "llama-3.1-8b": 8.030, "llama-3.1-70b": 70.554,
    "llama-3.1-405b": 405.853, "mistral-7b": 7.248, "mixtral-8x7b": 46.703, "mixtral-8x22b": 140.621,
    "qwen3-4b": 4.022, "qwen3-8b": 8.191, "qwen3-14b": 14.768, "qwen3-32b": 32.762, "qwen3-30b-a3b": 30.532,
    "deepseek-v3": 671.026, "gpt-oss-20b": 20.915, "gpt-oss-120b": 116.829,
}  # fmt: skip
"""As their makers publish them: the sum of the elements of all tensors."""


@pytest.mark.parametrize("name", BILLIONS)
def test_parameters_are_those_that_makers_publish(name: str) -> None:
    assert round(find_shape(name).parameters / 1e9, 3) == BILLIONS[name]


def test_every_known_model_has_a_source() -> None:
    assert known_models().keys() == BILLIONS.keys()
    assert all("config.json" in entry["source"] for entry in known_models().values())


def test_deepseek_is_what_transformers_builds() -> None:
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=96, moe_intermediate_size=32,
        n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=24,
        qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12, vocab_size=99, n_group=2, topk_group=1,
    )  # fmt: skip
    with torch.device("meta"):
        model = DeepseekV3ForCausalLM(config)
    # the bias that balances experts is a buffer there, and a tensor of the checkpoint
    held = sum(p.numel() for p in model.state_dict().values())
    shape = find_shape("", _changes(config.to_dict() | {"architectures": ["DeepseekV3ForCausalLM"]}))
    assert shape.parameters == held


def test_gpt_oss_is_what_transformers_builds() -> None:
    import torch
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=99,
        intermediate_size=48, num_local_experts=3, num_experts_per_tok=2,
    )  # fmt: skip
    with torch.device("meta"):
        model = GptOssForCausalLM(config)
    shape = find_shape("", _changes(config.to_dict() | {"architectures": ["GptOssForCausalLM"]}))
    assert shape.parameters == sum(p.numel() for p in model.state_dict().values())


def _changes(fields: dict[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(value)}" for name, value in fields.items() if isinstance(value, int | list)]


def test_a_folder_a_file_and_changed_fields_are_read(tmp_path: Path) -> None:
    fields = known_models()["llama-3.1-8b"]["config"]
    (tmp_path / "config.json").write_text(json.dumps(fields | {"quantization_config": {"bits": 4}}))
    for path in (tmp_path, tmp_path / "config.json"):
        assert find_shape(str(path)).parameters == find_shape("llama-3.1-8b").parameters
    assert find_shape("llama-3.1-8b", ["num_key_value_heads=32"]).num_kv_heads == 32
    assert find_shape("", [f"{name}={json.dumps(value)}" for name, value in fields.items()]).num_layers == 32


@pytest.mark.parametrize(
    ("model", "changes", "text"),
    [
        ("llama-9", [], "llama-2-7b"),
        ("", [], "--model"),
        ("", ["hidden_size=64"], "num_attention_heads"),
        ("llama-2-7b", ["num_hidden_layers=0"], "num_hidden_layers"),
        ("llama-2-7b", ["num_hidden_layers=many"], "num_hidden_layers=many"),
        ("llama-2-7b", ["7"], "FIELD=VALUE"),
        ("llama-2-7b", ['architectures=["Gemma9ForCausalLM"]'], "Gemma9ForCausalLM"),
        ("deepseek-v3", ["kv_lora_rank=null"], "kv_lora_rank"),
        ("deepseek-v3", ["first_k_dense_replace=62"], "first_k_dense_replace"),
        ("gpt-oss-20b", ["head_dim=-1"], "head_dim"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(model: str, changes: list[str], text: str) -> None:
    with pytest.raises((BadRequest, InvalidCheckpoint)) as caught:
        find_shape(model, changes)
    assert text in caught.value.message
