"""Tiny random models of every family in odd shapes, and LoRA adapters for them, as Hugging Face folders."""

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


YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
UNTIED = {"tie_word_embeddings": False}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SIGMOID = {
    "head_dim": 12,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "routed_scaling_factor": 2.5,
}
LATENT = {
    "head_dim": None,
    "num_key_value_heads": None,
    "kv_lora_rank": 24,
    "q_lora_rank": None,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}
SPECIAL = {"pad_token_id": 0}
GROUPS_OF_7 = {"num_attention_heads": 7, "num_key_value_heads": 1}
TWO_GROUPS_OF_7 = {"num_attention_heads": 14, "num_key_value_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "num_attention_heads": 3, "num_key_value_heads": 3}),
    "llama-2": ("Llama", {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": None, **UNTIED}),
    "llama-3.1": (
        "Llama",
        {"rope_parameters": LLAMA3_ROPE, "head_dim": 16, "hidden_size": 56, **TWO_GROUPS_OF_7, **UNTIED},
    ),
    "llama-linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}, "mlp_bias": True},
    ),
    "mistral-window": ("Mistral", {"sliding_window": 9, **UNTIED}),
    "mistral-null": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral-groups-of-7": ("Mistral", {"sliding_window": 11, **GROUPS_OF_7}),
    "qwen2-groups-of-7": (
        "Qwen2",
        {"hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": None},
    ),
    "qwen2-mixed-windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "num_hidden_layers": 3, **UNTIED},
    ),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN_ROPE, "head_dim": 16}),
    "qwen2-windows-groups-of-7": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0, **TWO_GROUPS_OF_7},
    ),
    "qwen3": ("Qwen3", {"attention_bias": True, "num_attention_heads": 9, "num_key_value_heads": 3}),
    "qwen3-groups-of-7": ("Qwen3", {**TWO_GROUPS_OF_7, **UNTIED}),
    "qwen3-mixed-windows": (
        "Qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "num_hidden_layers": 3,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, **UNTIED}),
    "mixtral-window": ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 3, "sliding_window": 8}),
    "mixtral-groups-of-7": (
        "Mixtral",
        {"hidden_size": 56, "head_dim": None, "num_local_experts": 4, "num_experts_per_tok": 1, **GROUPS_OF_7},
    ),
    "qwen3-moe-bias-groups-of-7": ("Qwen3Moe", {**EXPERTS, "attention_bias": True, **GROUPS_OF_7}),
    "qwen3-moe": ("Qwen3Moe", {**EXPERTS, **UNTIED}),
    "qwen3-moe-mixed": (
        "Qwen3Moe",
        {
            **EXPERTS,
            "norm_topk_prob": True,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "use_sliding_window": True,
            "sliding_window": 7,
        },
    ),
    "smollm3": ("SmolLM3", {**SPECIAL, "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 1], "head_dim": None}),
    "granite": (
        "Granite",
        {
            "head_dim": None,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.5,
            **UNTIED,
        },
    ),
    "gemma2": (
        "Gemma2",
        {
            "sliding_window": 7,
            "query_pre_attn_scalar": 14,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "num_hidden_layers": 3,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 12,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "phi3": ("Phi3", {"head_dim": None, "sliding_window": 11, **SPECIAL, **UNTIED}),
    "phi4-mini": (
        "Phi3",
        {
            "head_dim": None,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 0.75,
                "original_max_position_embeddings": 32,
                "short_factor": [1.0, 1.5, 2.0],
                "long_factor": [1.0, 1.5, 2.0],
            },
            "original_max_position_embeddings": 32,
            **SPECIAL,
        },
    ),
    "olmo2": ("Olmo2", {"head_dim": None, "attention_bias": True, **UNTIED}),
    "olmo3": (
        "Olmo3",
        {
            "head_dim": None,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": YARN_ROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "qwen2-moe": ("Qwen2Moe", {**EXPERTS, "head_dim": None, "shared_expert_intermediate_size": 40, **UNTIED}),
    "qwen2-moe-windows": (
        "Qwen2Moe",
        {
            **EXPERTS,
            "head_dim": None,
            "shared_expert_intermediate_size": 24,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 7,
            "max_window_layers": 2,
            "qkv_bias": False,
        },
    ),
    "glm4-moe": ("Glm4Moe", {**SIGMOID, "use_qk_norm": True, **UNTIED}),
    "glm4-moe-groups": (
        "Glm4Moe",
        {
            **SIGMOID,
            "attention_bias": True,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "first_k_dense_replace": 2,
            "num_hidden_layers": 3,
        },
    ),
    "deepseek-v2": ("DeepseekV2", {**LATENT, "topk_method": "greedy", "n_shared_experts": 2, **UNTIED}),
    "deepseek-v2-groups": (
        "DeepseekV2",
        {
            **LATENT,
            "q_lora_rank": 20,
            **GROUPS,
            "attention_bias": True,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 1.5,
            "rope_parameters": {**YARN_ROPE, "mscale": 0.707, "mscale_all_dim": 0.707},
            "num_hidden_layers": 3,
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            **LATENT,
            "q_lora_rank": 20,
            **GROUPS,
            "routed_scaling_factor": 2.5,
            "rope_parameters": {**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0},
            "num_hidden_layers": 3,
            **UNTIED,
        },
    ),
    "deepseek-v3-halves": (
        "DeepseekV3",
        {
            **LATENT,
            "q_lora_rank": None,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "n_group": 1,
            "topk_group": 1,
            "num_attention_heads": 3,
            "rope_parameters": {**YARN_ROPE, "mscale": 0.5, "mscale_all_dim": 1.0},
        },
    ),
    "glm": ("Glm", {"head_dim": 12, "attention_bias": True, **SPECIAL}),
    "glm4": ("Glm4", {"head_dim": 12, "attention_bias": True, **SPECIAL, **UNTIED}),
    "gpt-oss": (
        "GptOss",
        {
            "sliding_window": 8,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "swiglu_limit": 0.5,
            "rope_parameters": {**YARN_ROPE, "truncate": False},
            **UNTIED,
        },
    ),
    "qwen3.5": (
        "Qwen3_5",
        {
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            "head_dim": 16,
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 20,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 6,
            **SPECIAL,
            **UNTIED,
        },
    ),
}
"""Case -> prefix of the classes in ``transformers``, and changes to ``BASE``."""


CONFIGS = {"Gemma3": "Gemma3TextConfig", "Qwen3_5": "Qwen3_5TextConfig"}
"""Prefix -> class of the configuration, where it has another name."""


def save_tiny(
    path: Path,
    prefix: str = "Llama",
    *,
    seed: int = 0,
    max_shard_size: str = "1GB",
    is_stacked: bool = False,
    **changes: Any,
) -> Any:
    """Write a random model to ``path``; returns it in evaluation mode, float32.

    ``is_stacked`` writes experts in the layout of transformers 5 instead of the published one; ``head_dim=None``
    leaves the field out.
    """
    import transformers

    fields = {**BASE, **changes}
    if fields["head_dim"] is None:
        del fields["head_dim"]
    config = getattr(transformers, CONFIGS.get(prefix, f"{prefix}Config"))(**fields)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "sinks")) or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif name.endswith(("mlp.gate.weight", "mlp.router.weight")):
                parameter.copy_(torch.randn_like(parameter) * 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.2)
    model.save_pretrained(path, max_shard_size=max_shard_size, save_original_format=not is_stacked)
    return model


def save_tiny_llama(path: Path, seed: int = 0, max_shard_size: str = "1GB", **changes: Any) -> Any:
    """``save_tiny`` of the Llama family."""
    return save_tiny(path, "Llama", seed=seed, max_shard_size=max_shard_size, **changes)


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
    """Log probabilities after every token: float32 [tokens, vocab]."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1)


def greedy_reference(model: Any, ids: list[int], num_tokens: int) -> list[int]:
    """The tokens that ``transformers`` appends greedily."""
    out = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=num_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(ids) :].tolist()
