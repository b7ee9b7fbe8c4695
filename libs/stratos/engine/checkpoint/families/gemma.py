"""Gemma 2 and 3: norms around both halves of a layer, tanh GELU, and layers with a window between full ones."""

from __future__ import annotations

from dataclasses import replace

from stratos.engine.checkpoint.families.family import Family, NormNames

NORMS = NormNames(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)

DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
}
"""Of both."""

GEMMA_2 = Family(
    attention_bias="field",
    windows="by-pattern",
    window_period=2,
    norms=NORMS,
    norm_offset=1.0,
    is_embedding_scaled_by_width=True,
    query_scalar_field="query_pre_attn_scalar",
    attention_cap_field="attn_logit_softcapping",
    logit_cap_field="final_logit_softcapping",
    defaults=DEFAULTS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
)

GEMMA: dict[str, Family] = {
    "Gemma2ForCausalLM": GEMMA_2,
    "Gemma3ForCausalLM": replace(
        GEMMA_2,
        qk_norm="head",
        window_period=6,
        local_theta_field="rope_local_base_freq",
        defaults=DEFAULTS | {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
    ),
}
"""Architecture -> its options."""
