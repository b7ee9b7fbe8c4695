"""Tiny random Llama models in odd shapes, and LoRA adapters for them, written as Hugging Face folders."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
    "eos_token_id": [0, 4],
    "bos_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHAPES: dict[str, dict[str, Any]] = {
    "groups-of-3": {},
    "groups-of-7-untied": {
        "hidden_size": 56,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "tie_word_embeddings": False,
    },
    "biases": {"attention_bias": True, "mlp_bias": True, "num_attention_heads": 3, "num_key_value_heads": 3},
    "llama3-rope": {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": False, "head_dim": 16},
    "linear-rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
}


def save_tiny_llama(path: Path, seed: int = 0, max_shard_size: str = "1GB", **changes: Any) -> Any:
    """Write a random model to ``path``; returns it in evaluation mode, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**BASE, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path, max_shard_size=max_shard_size)
    return model


def save_adapter(path: Path, model: Any, *, rank: int, targets: list[str], seed: int, use_rslora: bool = False) -> None:
    """Write a random LoRA adapter (both A and B differ from zero) for ``model``, which is left unchanged."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=targets, use_rslora=use_rslora, task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, config)
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_" in name:
                    parameter.copy_(torch.randn_like(parameter) * 0.2)
        adapted.save_pretrained(path)
        adapted.unload()


def reference_logprobs(model: Any, ids: list[int]) -> torch.Tensor:
    """Log probabilities behind every token: float32 [tokens, vocab]."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1)
