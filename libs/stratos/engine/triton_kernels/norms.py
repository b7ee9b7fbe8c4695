"""RMS norm, with or without the residual that is added before it, and the gated activation: one pass over memory each.

A program computes one row from that row alone, in float32.  The sum with the residual is rounded to its type before it
is normed, as if it had been written and read again.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stratos.engine.triton_kernels.dependent_launch import launch_options, wait_for_previous

ACTIVATION_BLOCK = 1024


@triton.jit
def _rms_norm_kernel(
    out,
    x,
    residual,
    weight,
    eps,
    HIDDEN: tl.constexpr,
    HIDDEN_PADDED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    """Grid (tokens,)."""
    if HAS_PDL:
        wait_for_previous()
    places = tl.program_id(0).to(tl.int64) * HIDDEN
    columns = tl.arange(0, HIDDEN_PADDED)
    is_column = columns < HIDDEN
    value = tl.load(x + places + columns, mask=is_column, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        value += tl.load(residual + places + columns, mask=is_column, other=0.0).to(tl.float32)
        rounded = value.to(residual.dtype.element_ty)
        tl.store(residual + places + columns, rounded, mask=is_column)
        value = rounded.to(tl.float32)
    mean = tl.sum(value * value, 0) / HIDDEN
    factor = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    normed = value * tl.rsqrt(mean + eps) * factor
    tl.store(out + places + columns, normed.to(out.dtype.element_ty), mask=is_column)


@triton.jit
def _silu_mul_kernel(out, gate_up, INNER: tl.constexpr, BLOCK: tl.constexpr, HAS_PDL: tl.constexpr):
    """Grid (tokens, blocks of columns)."""
    if HAS_PDL:
        wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < INNER
    gate = tl.load(gate_up + token * 2 * INNER + columns, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * 2 * INNER + INNER + columns, mask=is_column, other=0.0).to(tl.float32)
    activated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + token * INNER + columns, activated.to(out.dtype.element_ty), mask=is_column)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, *, has_pdl: bool = False) -> Tensor:
    """Norm of ``x`` [tokens, hidden], contiguous, or of ``x + residual``, which then is left in ``residual``.

    ``has_pdl``: launched as ``dependent_launch`` says.
    """
    tokens, hidden = x.shape
    out = torch.empty_like(x)
    if tokens:
        padded = triton.next_power_of_2(hidden)
        _rms_norm_kernel[(tokens,)](
            out,
            x,
            x if residual is None else residual,
            weight,
            eps,
            HIDDEN=hidden,
            HIDDEN_PADDED=padded,
            HAS_RESIDUAL=residual is not None,
            num_warps=min(16, max(4, padded // 512)),
            **launch_options(has_pdl),
        )
    return out


def silu_mul(gate_up: Tensor, *, has_pdl: bool = False) -> Tensor:
    """``silu(gate) * up`` [tokens, inner] of ``gate_up`` [tokens, 2 * inner], contiguous; ``has_pdl`` as above."""
    tokens, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, inner)
    if tokens:
        grid = (tokens, triton.cdiv(inner, ACTIVATION_BLOCK))
        options = launch_options(has_pdl)
        _silu_mul_kernel[grid](out, gate_up, INNER=inner, BLOCK=ACTIVATION_BLOCK, num_warps=4, **options)
    return out
