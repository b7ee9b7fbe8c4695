"""The structures that Python and the kernels share; each mirrors one of the same fields in the C++ sources."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_float, c_int32, c_int64, c_uint32, c_void_p

import torch

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""How the kernels call the element types that they know."""
ACTIVATION_CODES = {"silu": 0, "gelu-tanh": 1, "clamped-swiglu": 2}
"""How they call the activations."""


class AttentionStep(ctypes.Structure):
    """``Step`` of attention.cpp: everything that the layers of one step share."""

    _fields_ = (
        *((name, c_void_p) for name in ("pages", "rows", "tables", "slots", "items", "cos", "sin", "scratch", "sinks")),
        *((name, c_void_p) for name in ("placed_cos", "placed_sin", "placed")),
        *(
            (name, c_int64)
            for name in (
                *("scratch_bytes", "block_stride", "layer_stride", "kv_stride", "head_stride"),
                *("num_rows", "num_tokens", "num_items"),
                *("num_heads", "kv_heads", "head_dim", "block_size"),
                *("dtype", "threads", "is_packed", "codes", "row", "first_tokens"),
            )
        ),
        *((name, c_float) for name in ("scale", "cap", "norm_eps", "norm_offset")),
    )


class LinearWeight(ctypes.Structure):
    """``Linear`` of gemm.h: a packed weight of any scheme."""

    _fields_ = (
        *((name, c_void_p) for name in ("weight", "bias", "scales", "zeros", "parts", "next")),
        *((name, c_int64) for name in ("n", "k", "scheme", "group", "stride", "tile_rows")),
        *((name, c_int64) for name in ("single_groups", "single_panels")),
    )


NORMS = ("before_attention", "after_attention", "before_mlp", "after_mlp", "qk_norm", "whole_q_norm", "whole_k_norm")
LINEARS = ("qkv", "output", "gate_up", "down")


class LayerWeights(ctypes.Structure):
    """``Layer`` of decoder.cpp."""

    _fields_ = (
        *((name, c_void_p) for name in NORMS),
        *((name, LinearWeight) for name in LINEARS),
        ("experts", c_void_p),
        ("window", c_int64),
        ("rope", c_int64),
        ("column", c_int64),
        ("place", c_int64),
    )


class ModelWeights(ctypes.Structure):
    """``Model`` of decoder.cpp: what never changes."""

    _fields_ = (
        *((name, c_void_p) for name in ("layers", "embedding", "final_norm", "cos", "sin")),
        ("head", LinearWeight),
        *((name, c_int64) for name in ("num_layers", "hidden", "inner", "dtype", "num_ropes", "activation")),
        *((name, c_float) for name in ("eps", "norm_offset", "embedding_scale", "residual_scale", "activation_limit")),
        ("unused", c_float),
    )


class MlpArgument(ctypes.Structure):
    """``Mlp`` of experts.h."""

    _fields_ = (("gate_up", LinearWeight), ("down", LinearWeight))


class RoutingOptions(ctypes.Structure):
    """``Routing`` of experts.h."""

    _fields_ = (
        ("bias", c_void_p),
        *((name, c_int64) for name in ("num_experts", "num_chosen", "num_groups", "num_scoring", "num_chosen_groups")),
        *((name, c_int64) for name in ("is_sigmoid", "norms_chosen")),
        ("scale", c_float),
        ("unused", c_float),
    )


class ExpertsOfLayer(ctypes.Structure):
    """``Experts`` of experts.h."""

    _fields_ = (
        ("experts", c_void_p),
        *((name, LinearWeight) for name in ("router", "shared_gate_up", "shared_down", "shared_gate")),
        ("routing", RoutingOptions),
        ("is_router_float", c_int64),
    )


EXPERT_ROWS = ("logits", "inputs", "wide", "narrow", "shared", "gates", "scores", "weights", "chosen", "places")


class ExpertRows(ctypes.Structure):
    """``ExpertRows`` of experts.h."""

    _fields_ = tuple((name, c_void_p) for name in (*EXPERT_ROWS, "begins", "active"))


class ForwardPass(ctypes.Structure):
    """``Pass`` of decoder.cpp: the inputs, buffers and results of one step."""

    _fields_ = (
        *((name, c_void_p) for name in ("step", "token_ids", "positions", "sampled")),
        *((name, c_void_p) for name in ("residual", "x", "wide", "narrow", "cos", "sin", "logits", "is_finite")),
        ("adapters", c_void_p),
        ("experts", ExpertRows),
        ("num_sampled", c_int64),
        ("threads", c_int64),
        ("num_steps", c_int64),
    )


class DeltaStep(ctypes.Structure):
    """``DeltaStep`` of delta.cpp: one layer of the gated delta rule in one step."""

    _fields_ = (
        *((name, c_void_p) for name in ("rows", "snapshots", "slots", "x", "conv", "a_log", "dt_bias", "norm")),
        *((name, c_void_p) for name in ("out", "scratch")),
        *((name, c_int64) for name in ("num_rows", "num_snapshots", "slot_stride", "layer_offset", "width")),
        *((name, c_int64) for name in ("key_heads", "value_heads", "key_dim", "value_dim", "kernel")),
        *((name, c_int64) for name in ("dtype", "threads")),
        ("eps", c_float),
        ("unused", c_float),
    )


class TargetOfAdapter(ctypes.Structure):
    """``AdapterTarget`` of adapters.h."""

    _fields_ = (("expand", c_void_p), ("column", c_int64), ("rank", c_int64))


MAX_TARGETS = 3


class AdapterPart(ctypes.Structure):
    """``AdapterPart`` of adapters.h: of one adapter and fused layer."""

    _fields_ = (
        ("shrink", c_void_p),
        ("bias", c_void_p),
        ("num_targets", c_int64),
        ("targets", TargetOfAdapter * MAX_TARGETS),
    )


class AdaptersOfStep(ctypes.Structure):
    """``StepAdapters`` of adapters.h; its segments are int64 [num_segments, 3]: parts, first row, rows."""

    _fields_ = (
        ("segments", c_void_p),
        ("shrunk", c_void_p),
        *((name, c_int64) for name in ("num_segments", "stride", "has_bias")),
    )


SEGMENT_ROWS = 32
"""Rows of a segment, at most."""


class SampleRow(ctypes.Structure):
    """``SampleRow`` of row_edits.h: one row of a batch, and its results."""

    _fields_ = (
        *((name, c_void_p) for name in ("logits", "bias_ids", "biases", "seen_ids", "counts", "banned", "allowed")),
        *((name, c_void_p) for name in ("top_logprobs", "top_ids")),
        *((name, c_int64) for name in ("num_biases", "num_seen", "num_banned", "num_top", "top_k")),
        ("top_p", c_double),
        *((name, c_float) for name in ("temperature", "least", "repetition", "frequency", "presence", "mark_delta")),
        *((name, c_uint32) for name in ("key_low", "key_high", "mark_low", "mark_high", "mark_threshold")),
        ("status", c_int32),
        ("token", c_int64),
        ("rank", c_int64),
        ("logprob", c_float),
        ("unused", c_int32),
    )


SHARED_BYTES = sum(
    ctypes.sizeof(structure)
    for structure in (
        *(LayerWeights, ModelWeights, ForwardPass, AdapterPart, AdaptersOfStep),
        *(MlpArgument, ExpertsOfLayer),
    )
)
"""Sum that ``stratos_pass_bytes`` must return."""
