"""The structures that Python and the kernels share; each mirrors one of the same fields in the C++ sources."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p

import torch

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}
"""How the kernels call the element types that they know."""


class AttentionStep(ctypes.Structure):
    """``Step`` of attention.cpp: everything that the layers of one step share."""

    _fields_ = (
        *((name, c_void_p) for name in ("pages", "rows", "tables", "slots", "items", "cos", "sin", "scratch")),
        *(
            (name, c_int64)
            for name in (
                *("scratch_bytes", "block_stride", "layer_stride", "kv_stride", "head_stride"),
                *("num_rows", "num_tokens", "num_items"),
                *("num_heads", "kv_heads", "head_dim", "block_size"),
                *("dtype", "threads"),
            )
        ),
        ("scale", c_float),
        ("norm_eps", c_float),
    )


class LinearWeight(ctypes.Structure):
    """``Linear`` of gemm.h: a packed weight."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("n", c_int64), ("k", c_int64))
