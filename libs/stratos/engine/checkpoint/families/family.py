"""A family: a table of options over one decoder, read by the parser of ``config.json``.

``defaults`` are the values that ``transformers`` assumes for fields that a ``config.json`` leaves out.  The sizes that
decide the shape of the weights have none: a checkpoint states them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

BiasRule = Literal["never", "qkv", "field", "qkv-field"]
"""Biases of the attention's projections: none, q/k/v alone, all four when ``attention_bias`` says so, or q/k/v then."""

WindowRule = Literal["never", "all", "all-when-used", "by-layer", "by-pattern", "by-turns"]
"""Layers with a sliding window: none; all (``sliding_window`` or null); all when ``use_sliding_window``; when
``use_sliding_window``, those that ``layer_types`` names, else those from ``max_window_layers`` on; those that
``layer_types`` names, else all but the last one of every ``window_period``; or, when ``use_sliding_window``, those that
``layer_types`` names, else every second one below ``max_window_layers``."""

QkNormRule = Literal["never", "head", "whole"]
"""RMS norm of q and k before they are rotated: none, over each head, or over all heads together."""

Activation = Literal["silu", "gelu-tanh", "clamped-swiglu"]
"""Of the gate of an MLP.  The last is gpt-oss's: both halves are clamped, and 1 is added to ``up``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNames:
    """Names of the parts of a mixture-of-experts layer."""

    block: str
    gate: str
    up: str
    down: str
    router: str = "gate"
    is_interleaved: bool = False
    """All experts of a layer are stored in one tensor [experts, inputs, outputs], gate and up by turns; they and the
    router have biases."""
    selection_bias: str = ""
    """Part of the router beside its weight: float32, on the scores by which experts are chosen, not on weights."""
    shared: str = ""
    """An MLP that every token goes through; none where it has no name."""
    shared_gate: str = ""
    """Its share of the result is the sigmoid of a product with this, where that has a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormNames:
    """Names of the norms of a layer; a place without a name has none."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    """Norms the result of the attention, before it is added to the residual."""
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None

    @property
    def present(self) -> tuple[str, ...]:
        """Names of those that are there, in the order of the computation."""
        names = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        return tuple(name for name in names if name is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture of ``transformers``; a name that ends with ``_field`` is that of a field of ``config.json``."""

    attention_bias: BiasRule = "never"
    attention_bias_field: str = "attention_bias"
    has_mlp_bias_field: bool = False
    qk_norm: QkNormRule = "never"
    qk_norm_field: str = ""
    """Without it in the configuration q and k have no norm."""
    windows: WindowRule = "never"
    window_period: int = 0
    norms: NormNames = field(default_factory=NormNames)
    norm_offset: float = 0.0
    """Added to the weights of every norm."""
    activation: Activation | None = None
    """Activation of MLPs; ``None``: what ``hidden_act`` says."""
    is_fused: bool = False
    """The checkpoint holds q, k and v as one tensor ``qkv_proj``, and gate and up as ``gate_up_proj``."""
    is_mlp_fused: bool = False
    """Gate and up alone are one tensor."""
    embedding_scale_field: str = ""
    is_embedding_scaled_by_width: bool = False
    """Embeddings times the root of ``hidden_size``, rounded to the compute type."""
    residual_scale_field: str = ""
    """On the result of attention and MLP, before it is added."""
    attention_scale_field: str = ""
    query_scalar_field: str = ""
    """Scores are scaled by one over its root."""
    attention_cap_field: str = ""
    """Scores are ``cap * tanh(score / cap)``."""
    logit_divisor_field: str = ""
    logit_cap_field: str = ""
    has_sinks: bool = False
    """Every head has a score that takes its share of the softmax, and no value."""
    rotated_share: float = 1.0
    """Part of a head's features that is rotated, where ``partial_rotary_factor`` does not say it."""
    is_rotation_interleaved: bool = False
    """Features 2i and 2i + 1 are rotated together, not i and i + half."""
    local_theta_field: str = ""
    """Rotation of the layers with a window, where ``rope_parameters`` has not both; "rope_theta" for the common one."""
    has_unrotated_layers: bool = False
    """``no_rope_layers`` names the layers that are rotated, else all but the last of ``no_rope_layer_interval``."""
    has_delta_layers: bool = False
    """Layers that ``layer_types`` calls linear attention are of the gated delta rule."""
    has_output_gate: bool = False
    """``q_proj`` holds, behind each head of q, a gate whose sigmoid scales that head's result."""
    experts: ExpertNames | None = None
    """How the checkpoint names its experts; ``None`` for a family without mixture-of-experts layers."""
    has_dense_layers: bool = False
    """Whether ``mlp_only_layers`` and ``decoder_sparse_step`` may leave layers without experts."""
    dense_layers_field: str = ""
    """So many first layers have no experts."""
    is_latent: bool = False
    """Keys and values come from one vector that a token keeps (MLA)."""
    expert_scale_field: str = ""
    """On the weights of the chosen experts, where scores are a softmax."""
    group_rule_field: str = ""
    """"greedy": experts are chosen from all; "group_limited_greedy": from the groups that have the best one."""
    is_sigmoid_routed: bool = False
    """Scores of experts are sigmoids of their own, by groups of experts, and not a softmax over all of them."""
    unused_layers_field: str = ""
    """So many layers behind the last one draft tokens; their tensors are not read."""
    drafting_prefix: str = ""
    """Tensors whose names begin so draft tokens, and are not read."""
    always_norms_chosen: bool = False
    """Whether the weights of the chosen experts always sum to 1, regardless of ``norm_topk_prob``."""
    expert_size_field: str = "intermediate_size"
    shared_size_field: str = ""
    """Features of the MLP that every token goes through, where they are not those of an expert."""
    shared_count_field: str = ""
    """Times that, where it is not once."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that no other value of is computed."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
