"""GLM-4: half of each head is rotated, features by turns; that of 2025 has norms around both halves of a layer.

GLM-4.5 rotates half of each head like others, and has experts with a shared one, chosen by sigmoids and a bias.
"""

from __future__ import annotations

from stratos.engine.checkpoint.families.family import ExpertNames, Family, NormNames

DEFAULTS = {"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1.5625e-07, "attention_bias": True}

GLM: dict[str, Family] = {
    "GlmForCausalLM": Family(
        attention_bias="qkv-field",
        is_mlp_fused=True,
        rotated_share=0.5,
        is_rotation_interleaved=True,
        defaults=DEFAULTS,
    ),
    "Glm4ForCausalLM": Family(
        attention_bias="qkv-field",
        is_mlp_fused=True,
        rotated_share=0.5,
        is_rotation_interleaved=True,
        norms=NormNames(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
        defaults=DEFAULTS,
    ),
    "Glm4MoeForCausalLM": Family(
        attention_bias="qkv-field",
        qk_norm="head",
        qk_norm_field="use_qk_norm",
        rotated_share=0.5,
        experts=ExpertNames(
            block="mlp",
            gate="gate_proj",
            up="up_proj",
            down="down_proj",
            selection_bias="e_score_correction_bias",
            shared="shared_experts",
        ),
        is_sigmoid_routed=True,
        dense_layers_field="first_k_dense_replace",
        unused_layers_field="num_nextn_predict_layers",
        expert_size_field="moe_intermediate_size",
        shared_count_field="n_shared_experts",
        defaults={
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "moe_intermediate_size": 1408,
            "num_experts_per_tok": 8,
            "num_local_experts": 128,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
        },
    ),
}
"""Architecture -> its options."""
