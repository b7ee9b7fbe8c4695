"""Qwen3.5: layers of the gated delta rule, and every few layers full attention with a gate on its result."""

from __future__ import annotations

from stratos.engine.checkpoint.families.family import Family

QWEN3_5: dict[str, Family] = {
    "Qwen3_5ForCausalLM": Family(
        attention_bias="field",
        qk_norm="head",
        norm_offset=1.0,
        rotated_share=0.25,
        has_delta_layers=True,
        has_output_gate=True,
        drafting_prefix="mtp.",
        defaults={
            "num_key_value_heads": 4,
            "head_dim": 256,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
        },
    ),
}
"""Architecture -> its options."""
