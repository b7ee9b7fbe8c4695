"""gpt-oss: every second layer has a window, heads have sinks, and all of attention and experts have biases."""

from __future__ import annotations

from stratos.engine.checkpoint.families.family import ExpertNames, Family

GPT_OSS: dict[str, Family] = {
    "GptOssForCausalLM": Family(
        attention_bias="field",
        windows="by-pattern",
        window_period=2,
        activation="clamped-swiglu",
        has_sinks=True,
        experts=ExpertNames(block="mlp", gate="", up="", down="", router="router", is_interleaved=True),
        always_norms_chosen=True,
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 64,
            "attention_bias": True,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "sliding_window": 128,
            "num_experts_per_tok": 4,
            "num_local_experts": 128,
        },
    ),
}
"""Architecture -> its options."""
