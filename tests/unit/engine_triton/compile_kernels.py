"""Compiles every kernel for sm_90 and prints what came out as JSON; a test runs it in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

import torch
from triton_compile import Compiled, compiled

from stratos.engine.triton_kernels.attention import AttentionRows, Parts, TileShape, attend

HEADS, KV_HEADS, DIM, TOKENS = 32, 8, 128, 8
DECODE, PREFILL = TileShape(16, 64, 4, 4), TileShape(128, 64, 8, 3)


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
            _attention(pages_type, DECODE, 16)
            _attention(pages_type, PREFILL, 0)
    print(json.dumps(_report(record)))


if __name__ == "__main__":
    main()
