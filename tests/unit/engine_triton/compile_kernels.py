"""Compiles every kernel for sm_90 and prints what came out as JSON; a test runs it in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

import torch
from triton_compile import Compiled, compiled

from stratos.engine.attention.triton_paged import Shapes
from stratos.engine.triton_kernels import norms, sampling
from stratos.engine.triton_kernels.attention import AttentionRows, Parts, TileShape, attend
from stratos.engine.triton_kernels.rope_kv import rotate_and_store

HEADS, KV_HEADS, DIM, TOKENS = 32, 8, 128, 8
SHAPES = Shapes.for_model(torch.bfloat16, HEADS // KV_HEADS, DIM)


def _int32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _attention(pages_type: torch.dtype, shape: TileShape, num_parts: int) -> None:
    pages = torch.zeros(4, 2, 2, KV_HEADS, 16, DIM, dtype=pages_type)
    query = torch.zeros(TOKENS, HEADS, DIM, dtype=torch.bfloat16)
    rows = AttentionRows(
        query_blocks=_int32(TOKENS, 2),
        query_begins=_int32(TOKENS),
        query_counts=_int32(TOKENS),
        contexts=_int32(TOKENS),
        block_tables=_int32(TOKENS, 16),
    )
    parts = None
    if num_parts:
        parts = Parts(num_parts, torch.zeros(TOKENS, HEADS, num_parts, DIM), torch.zeros(TOKENS, HEADS, num_parts, 2))
    is_fp8 = pages_type == torch.float8_e4m3fn
    attend(
        torch.zeros_like(query),
        query,
        pages[:, 1],
        rows,
        scale=0.1,
        window=None,
        shape=shape,
        parts=parts,
        kv_scales=torch.ones(2, KV_HEADS) if is_fp8 else None,
    )


def _layer(pages_type: torch.dtype) -> None:
    x = torch.zeros(TOKENS, (HEADS + 2 * KV_HEADS) * DIM, dtype=torch.bfloat16)
    weight, factors = torch.zeros(HEADS + KV_HEADS, DIM, dtype=torch.bfloat16), torch.zeros(TOKENS, DIM)
    pages = torch.zeros(4, 2, 2, KV_HEADS, 16, DIM, dtype=pages_type)
    scales = torch.ones(2, KV_HEADS) if pages_type == torch.float8_e4m3fn else None
    rotate_and_store(x, factors, factors, weight, 1e-6, _int32(TOKENS), pages[:, 1], HEADS, scales)
    norms.rms_norm(x, x[0], 1e-6)
    norms.rms_norm(x, x[0], 1e-6, x)
    norms.silu_mul(x)


def _sampling() -> None:
    logits = torch.zeros(TOKENS, 128256)
    sampling.sample(logits, torch.zeros(TOKENS, 3, dtype=torch.float64), torch.zeros(TOKENS), _int32(TOKENS, 2))
    sampling.penalise(logits, _int32(2), _int32(2), torch.zeros(2, 3), _int32(2, 128256))
    sampling.mask(logits, _int32(2), _int32(2, 4008))


def _report(record: Compiled) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [
            {
                "shared": kernel.metadata.shared,
                "warp_group_products": kernel.asm["ptx"].count("wgmma.mma_async"),
                "async_copies": kernel.asm["ptx"].count("cp.async.cg"),
                "local_bytes": kernel.asm["ptx"].count(".local "),
            }
            for kernel in kernels
        ]
        for name, kernels in record.kernels.items()
    }


def main() -> None:
    with compiled() as record:
        for pages_type in (torch.bfloat16, torch.float8_e4m3fn):
            _attention(pages_type, SHAPES.decode, 16)
            _attention(pages_type, SHAPES.prefill, 0)
            _layer(pages_type)
        _sampling()
    print(json.dumps(_report(record)))


if __name__ == "__main__":
    main()
