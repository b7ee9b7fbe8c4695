"""Adapters with everything that PEFT can save in addition to plain LoRA, of tiny models with random weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from stratos.core.files.adapter_files import AdapterFiles, read_adapter_files

EVERYTHING = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FEATURES: dict[str, dict[str, Any]] = {
    "bias-lora-only": {"target_modules": ["q_proj", "down_proj"], "bias": "lora_only"},
    "bias-all": {"target_modules": ["q_proj"], "bias": "all"},
    "q-only": {"target_modules": ["q_proj"]},
    "v-and-up": {"target_modules": ["v_proj", "up_proj"]},
    "one-layer": {"target_modules": EVERYTHING, "layers_to_transform": [1]},
    "different-per-layer": {"target_modules": r"model\.layers\.0\.self_attn\.k_proj|model\.layers\.1\.mlp\.up_proj"},
    "rank-pattern": {
        "target_modules": EVERYTHING,
        "rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 9, "^model.layers.0.self_attn.v_proj": 1},
    },
    "alpha-pattern": {"target_modules": EVERYTHING, "alpha_pattern": {"k_proj": 3, "layers.0.mlp.up_proj": 40}},
    "both-rank-stabilised": {
        "target_modules": ["q_proj", "k_proj", "v_proj"],
        "use_rslora": True,
        "rank_pattern": {"k_proj": 7},
        "alpha_pattern": {"v_proj": 2.5},
    },
    "rank-64": {"target_modules": ["q_proj", "o_proj", "down_proj"], "r": 64},
}


def save(folder: Path, model: Any, seed: int = 0, **fields: Any) -> AdapterFiles:
    """A random adapter of ``model``, every tensor and bias different from its start."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    values = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", **fields}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, LoraConfig(**values))
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
            elif name.endswith("bias") and parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        adapted.save_pretrained(folder)
        adapted.unload()
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])
    return read_adapter_files(folder)
