"""Llama and Mixtral checkpoints and adapters with random weights, for measurements where only the shape matters.

Same weights every time.  The tokenizer is that of the shipped model, whose vocabulary is a part of theirs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SHAPES: dict[str, dict[str, int]] = {
    "llama-213m": {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000, "max_position_embeddings": 4096,
    },
    "experts-371m": {  # a token's experts have as many features as the MLP of llama-213m
        "hidden_size": 1024, "intermediate_size": 352, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000, "max_position_embeddings": 4096,
        "num_local_experts": 16, "num_experts_per_tok": 8,
    },
    "experts-9m": {
        "hidden_size": 256, "intermediate_size": 176, "num_hidden_layers": 6, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 4096, "max_position_embeddings": 4096,
        "num_local_experts": 8, "num_experts_per_tok": 4,
    },
    "draft-1m": {  # as the shipped draft, which it stands beside
        "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 4096, "max_position_embeddings": 4096,
    },
}  # fmt: skip
STD = 0.02


def config_json(shape: dict[str, int]) -> dict[str, Any]:
    """The config of a Llama, or of a Mixtral where there are experts, with tied embeddings."""
    name = "Mixtral" if "num_local_experts" in shape else "Llama"
    return {
        "architectures": [f"{name}ForCausalLM"], "model_type": name.lower(), "dtype": "bfloat16", "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, **shape,
    }  # fmt: skip


def _mlp(shape: dict[str, int]) -> dict[str, tuple[int, int]]:
    up, down = (shape["intermediate_size"], shape["hidden_size"]), (shape["hidden_size"], shape["intermediate_size"])
    if (num_experts := shape.get("num_local_experts", 0)) == 0:
        return {"mlp.gate_proj": up, "mlp.up_proj": up, "mlp.down_proj": down}
    sizes = {"w1": up, "w3": up, "w2": down}
    experts = {f"experts.{e}.{name}": size for e in range(num_experts) for name, size in sizes.items()}
    block = {"gate": (num_experts, shape["hidden_size"]), **experts}
    return {f"block_sparse_moe.{name}": size for name, size in block.items()}


def tensors(shape: dict[str, int]) -> dict[str, torch.Tensor]:
    """All weights by their checkpoint names, bfloat16."""
    generator = torch.Generator().manual_seed(0)
    hidden, head = shape["hidden_size"], shape["head_dim"]
    heads, kv_heads = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float32).mul_(STD).bfloat16()

    weights = {"model.embed_tokens.weight": random(shape["vocab_size"], hidden)}
    for layer in range(shape["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        sizes = {
            "self_attn.q_proj": (heads, hidden), "self_attn.k_proj": (kv_heads, hidden),
            "self_attn.v_proj": (kv_heads, hidden), "self_attn.o_proj": (hidden, heads),
        } | _mlp(shape)  # fmt: skip
        weights |= {f"{prefix}{name}.weight": random(*size) for name, size in sizes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    weights["model.norm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    return weights


def write_model(shape_name: str, folder: Path, tokenizer: Path, **changes: int) -> None:
    """Write config, weights, and the tokenizer that lies in the folder ``tokenizer``; ``changes`` of the shape."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[shape_name] | changes
    (folder / "config.json").write_text(json.dumps(config_json(shape), indent=2) + "\n")
    save_file(tensors(shape), folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, folder / name)


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def write_adapter(
    shape: Mapping[str, int], folder: Path, rank: int, seed: int, projections: Sequence[str] = ATTENTION
) -> None:
    """Write a LoRA adapter for projections of the attention; ``shape`` has the names of ``config.json``."""
    generator = torch.Generator().manual_seed(seed)
    hidden, head = shape["hidden_size"], shape["head_dim"]
    heads, kv_heads = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    sizes = {"q_proj": (heads, hidden), "k_proj": (kv_heads, hidden), "v_proj": (kv_heads, hidden),
             "o_proj": (hidden, heads)}  # fmt: skip
    sizes = {name: sizes[name] for name in projections}
    weights = {}
    for layer in range(shape["num_hidden_layers"]):
        for name, (rows, columns) in sizes.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(rank, columns, generator=generator).mul_(STD)
            weights[f"{prefix}.lora_B.weight"] = torch.randn(rows, rank, generator=generator).mul_(STD)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": sorted(sizes), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
