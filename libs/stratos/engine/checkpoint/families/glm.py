"""GLM-4: half of each head is rotated, features by turns; that of 2025 has norms around both halves of a layer."""

from __future__ import annotations

from stratos.engine.checkpoint.families.family import Family, NormNames

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
}
"""Architecture -> its options."""
