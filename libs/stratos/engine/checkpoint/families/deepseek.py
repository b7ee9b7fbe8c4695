"""DeepSeek V2 and V3: latent attention (``latent``), dense layers first, then experts with shared ones."""

from __future__ import annotations

from dataclasses import replace

from stratos.engine.checkpoint.families.family import ExpertNames, Family

V2_NAMES = ExpertNames(block="mlp", gate="gate_proj", up="up_proj", down="down_proj", shared="shared_experts")
V2_DEFAULTS = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_local_experts": 64,
    "moe_intermediate_size": 1407,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 0,
    "topk_method": "greedy",
}
V3_DEFAULTS = V2_DEFAULTS | {
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3,
    "topk_method": "noaux_tc",
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
}
V2 = Family(
    is_latent=True,
    experts=V2_NAMES,
    expert_scale_field="routed_scaling_factor",
    group_rule_field="topk_method",
    dense_layers_field="first_k_dense_replace",
    expert_size_field="moe_intermediate_size",
    shared_count_field="n_shared_experts",
    fixed={"scoring_func": "softmax", "norm_topk_prob": False, "moe_layer_freq": 1},
    defaults=V2_DEFAULTS,
)

DEEPSEEK: dict[str, Family] = {
    "DeepseekV2ForCausalLM": V2,
    "DeepseekV3ForCausalLM": replace(
        V2,
        experts=replace(V2_NAMES, selection_bias="e_score_correction_bias"),
        expert_scale_field="",
        is_sigmoid_routed=True,
        unused_layers_field="num_nextn_predict_layers",
        fixed={"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1},
        defaults=V3_DEFAULTS,
    ),
}
"""Architecture -> its options."""
