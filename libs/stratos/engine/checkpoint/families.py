"""Differences between the families, as data: one entry per architecture, read by the parser of ``config.json``.

``defaults`` are the values that ``transformers`` assumes for fields that a ``config.json`` leaves out.  The sizes that
decide the shape of the weights have none: a checkpoint states them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

BiasRule = Literal["never", "qkv", "field"]
"""Biases of the attention's projections: none, q/k/v alone, or all four when ``attention_bias`` says so."""

WindowRule = Literal["never", "all", "all-when-used", "by-layer"]
"""Layers with a sliding window: none; all (``sliding_window`` or null); all when ``use_sliding_window``; or, when
``use_sliding_window``, those that ``layer_types`` names, else those from ``max_window_layers`` on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNames:
    """Names of the parts of a mixture-of-experts layer whose experts have tensors of their own."""

    block: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture of ``transformers``."""

    attention_bias: BiasRule = "never"
    has_mlp_bias_field: bool = False
    has_qk_norm: bool = False
    windows: WindowRule = "never"
    experts: ExpertNames | None = None
    """How the checkpoint names its experts; ``None`` for a family without mixture-of-experts layers."""
    has_dense_layers: bool = False
    """Whether ``mlp_only_layers`` and ``decoder_sparse_step`` may leave layers without experts."""
    always_norms_chosen: bool = False
    """Whether the weights of the chosen experts always sum to 1, regardless of ``norm_topk_prob``."""
    expert_size_field: str = "intermediate_size"
    defaults: Mapping[str, Any] = field(default_factory=dict)


MIXTRAL_EXPERTS = ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2")
QWEN_EXPERTS = ExpertNames(block="mlp", gate="gate_proj", up="up_proj", down="down_proj")

FAMILIES: dict[str, Family] = {
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
        has_qk_norm=True,
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
        has_qk_norm=True,
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
}
BODIES: dict[str, str] = {name.replace("ForCausalLM", "Model"): name for name in FAMILIES}
"""Architecture without an output layer -> the one with it; embedding models are saved as the former."""
MODEL_TYPES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""``model_type`` -> architecture, for a ``config.json`` without ``architectures``."""
