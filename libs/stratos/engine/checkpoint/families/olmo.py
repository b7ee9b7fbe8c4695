"""OLMo 2 and 3: norms after both halves of a layer, and q and k normed over all heads together."""

from __future__ import annotations

from stratos.engine.checkpoint.families.family import Family, NormNames

NORMS = NormNames(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)

OLMO: dict[str, Family] = {
    "Olmo2ForCausalLM": Family(
        attention_bias="field",
        qk_norm="whole",
        norms=NORMS,
        defaults={"rms_norm_eps": 1e-5},
    ),
    "Olmo3ForCausalLM": Family(
        attention_bias="field",
        qk_norm="whole",
        windows="by-pattern",
        window_period=4,
        norms=NORMS,
        local_theta_field="rope_theta",
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 5e5},
    ),
}
"""Architecture -> its options."""
