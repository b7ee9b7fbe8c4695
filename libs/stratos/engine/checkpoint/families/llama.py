"""Llama, and families that differ from it by biases, windows, experts and scales."""

from __future__ import annotations

from dataclasses import replace

from stratos.engine.checkpoint.families.family import ExpertNames, Family

MIXTRAL_EXPERTS = ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2")
QWEN_EXPERTS = ExpertNames(block="mlp", gate="gate_proj", up="up_proj", down="down_proj")

LLAMA: dict[str, Family] = {
    "LlamaForCausalLM": Family(attention_bias="field", has_mlp_bias_field=True),
    "MistralForCausalLM": Family(
        windows="all",
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    ),
    "Qwen2ForCausalLM": Family(
        attention_bias="qkv",
        windows="by-layer",
        defaults={"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    ),
    "Qwen3ForCausalLM": Family(
        attention_bias="field",
        qk_norm="head",
        windows="by-layer",
        defaults={"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
    ),
    "MixtralForCausalLM": Family(
        windows="all",
        experts=MIXTRAL_EXPERTS,
        always_norms_chosen=True,
        defaults={
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "Qwen3MoeForCausalLM": Family(
        attention_bias="field",
        qk_norm="head",
        windows="all-when-used",
        experts=QWEN_EXPERTS,
        has_dense_layers=True,
        expert_size_field="moe_intermediate_size",
        defaults={
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_local_experts": 128,
            "num_experts_per_tok": 8,
        },
    ),
    "Qwen2MoeForCausalLM": Family(
        attention_bias="qkv-field",
        attention_bias_field="qkv_bias",
        windows="by-turns",
        experts=replace(QWEN_EXPERTS, shared="shared_expert", shared_gate="shared_expert_gate"),
        has_dense_layers=True,
        expert_size_field="moe_intermediate_size",
        shared_size_field="shared_expert_intermediate_size",
        defaults={
            "num_key_value_heads": 16,
            "qkv_bias": True,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "intermediate_size": 5632,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_local_experts": 60,
            "num_experts_per_tok": 4,
        },
    ),
    "SmolLM3ForCausalLM": Family(
        attention_bias="field",
        has_mlp_bias_field=True,
        windows="by-layer",
        has_unrotated_layers=True,
        defaults={"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
    ),
    "GraniteForCausalLM": Family(
        attention_bias="field",
        has_mlp_bias_field=True,
        embedding_scale_field="embedding_multiplier",
        residual_scale_field="residual_multiplier",
        attention_scale_field="attention_multiplier",
        logit_divisor_field="logits_scaling",
    ),
}
"""Architecture -> its options."""
