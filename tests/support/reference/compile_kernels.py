"""Compiles every kernel for sm_90 as Llama-3.1-8B uses it and prints what came out as JSON.

Its arguments name the precisions: bf16, with the kernels that have one variant only, fp16, fp8; or a compute
capability, such as 80, for which attention is compiled with the heads of other models, or codes-80, for which
products of weights that stay codes are.

A test runs it in a process of its own.  Launches go through the classes that serve, over buffers of the sizes that
serve, so constants and alignments of the compiled variants are those of a GPU.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch

from stratos.core.kv import KvGeometry
from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.context_parts import ContextParts
from stratos.engine.attention.projections import QkNorm
from stratos.engine.attention.triton_paged import Shapes, TritonPagedAttention
from stratos.engine.checkpoint.weight_schemes import BYTE_ROWS, LinearScheme
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.layers.triton_ops import TritonOps
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.runner.cuda.tables import DeviceTables
from stratos.engine.triton_kernels import lora, sampling, split_sampling
from stratos.engine.triton_kernels.codes.byte_products import byte_codes_linear
from stratos.engine.triton_kernels.codes.experts import ExpertCodes, expert_codes_linear
from stratos.engine.triton_kernels.codes.packing import packed
from stratos.engine.triton_kernels.codes.products import FEW_ROWS, MANY_ROWS, codes_linear
from stratos.engine.triton_kernels.experts import experts_linear
from stratos.engine.triton_kernels.few_rows import SHAPES, few_rows_linear
from stratos.engine.triton_kernels.kv_copies import copy_kv
from stratos.engine.triton_kernels.linear import linear
from tests.support.reference.made_codes import made_codes
from tests.support.reference.triton_compile import Compiled, compiled, resources

LAYERS, HEADS, KV_HEADS, DIM, BLOCK, HIDDEN, VOCAB = 32, 32, 8, 128, 16, 4096, 128256
BATCHES = (1, 8, 64)
"""Rows of decode steps: contexts in many parts, in some, in one."""
CPU = torch.device("cpu")
PRECISIONS = {
    "bf16": (torch.bfloat16, torch.bfloat16),
    "fp16": (torch.float16, torch.float16),
    "fp8": (torch.float8_e4m3fn, torch.bfloat16),
}
"""Of the pages, and of the products."""
SHARED_BYTES = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 120: 99 * 1024}
"""Of one program, by compute capability: A100, L4 and RTX 4090, H100, RTX 5090."""
OTHER_HEADS = ((14, 2, 64, None), (32, 32, 96, 2048), (32, 8, 128, None), (8, 8, 256, 1024))
"""Query heads, KV heads, head size, window: groups of 7 and 1."""
CODES = (
    *((LinearScheme.INT4, 32), (LinearScheme.INT4, 128), (LinearScheme.INT8, 0), (LinearScheme.FP8, 0)),
    *((LinearScheme.FP8, 128), (LinearScheme.MXFP4, 32), (LinearScheme.NF4, 64), (LinearScheme.NVFP4, 0)),
)
"""Scheme and group; those of 128 have zeros where they can."""
OF_CODES = "codes-"
WIDE = {name: re.compile(rf"\b{name}\.global\S*\.v(?:2\.b64|4\.b32)") for name in ("ld", "st")}
"""Loads and stores of 16 bytes."""


def _attention(pages_type: torch.dtype, dtype: torch.dtype, **options: Any) -> TritonPagedAttention:
    geometry = KvGeometry(
        num_layers=LAYERS, num_kv_heads=KV_HEADS, head_dim=DIM, block_size=BLOCK, element_bytes=pages_type.itemsize
    )
    scales = torch.ones(LAYERS, 2, KV_HEADS) if pages_type == torch.float8_e4m3fn else None
    pages = KvPages(geometry, 1, pages_type, CPU)
    return TritonPagedAttention(pages, HEADS, (None,) * LAYERS, dtype=dtype, kv_scales=scales, **options)


def _forward(attention: TritonPagedAttention, dtype: torch.dtype, tokens: int, metadata: Any, norm: bool) -> None:
    qkv, factors = torch.zeros(tokens, (HEADS + 2 * KV_HEADS) * DIM, dtype=dtype), torch.zeros(tokens, DIM)
    qk_norm = QkNorm(torch.ones(HEADS + KV_HEADS, DIM, dtype=dtype), 1e-6) if norm else None
    attention.forward(1, qkv, RopeRows(factors, factors), qk_norm, metadata)


def _attend(pages_type: torch.dtype, dtype: torch.dtype) -> None:
    attention = _attention(pages_type, dtype)
    balanced = DeviceTables(128, max(BATCHES), 64, BLOCK, CPU, attention.context_parts)
    _forward(attention, dtype, max(BATCHES), balanced.metadata(attention, max(BATCHES)), norm=False)
    tables = DeviceTables(128, max(BATCHES), 64, BLOCK, CPU)
    equal = _attention(pages_type, dtype, balances_kv=False)
    for rows in BATCHES:
        _forward(equal, dtype, rows, tables.metadata(equal, rows), norm=False)
    prompt = attention.prepare([RowSpan(0, BLOCK, 0, (0,))])
    _forward(attention, dtype, BLOCK, prompt, norm=True)
    exact = _attention(pages_type, dtype, is_exact=True)
    _forward(exact, dtype, 1, tables.metadata(exact, 1), norm=False)


def _attend_with_other_heads(capability: int) -> None:
    """All heads as they serve; in exact mode one kind in two for each GPU, so that every kind is there for some."""
    dtype, shared_bytes = torch.bfloat16, SHARED_BYTES[capability]
    place = sorted(SHARED_BYTES).index(capability)
    for kind, (heads, kv_heads, dim, window) in enumerate(OTHER_HEADS):
        geometry = KvGeometry(num_layers=1, num_kv_heads=kv_heads, head_dim=dim, block_size=BLOCK, element_bytes=2)
        shapes = Shapes.for_model(dtype, heads // kv_heads, dim, shared_bytes)
        for is_exact in (False, True)[: 1 + (kind + place) % 2]:
            attention = TritonPagedAttention(
                KvPages(geometry, 1, dtype, CPU), heads, (window,), dtype=dtype, is_exact=is_exact, shapes=shapes
            )
            rows = [RowSpan(0, BLOCK, 0, (0,)), RowSpan(BLOCK, 1, 3, (0,))]
            qkv, factors = torch.zeros(BLOCK + 1, (heads + 2 * kv_heads) * dim, dtype=dtype), torch.zeros(17, dim)
            attention.forward(0, qkv, RopeRows(factors, factors), None, attention.prepare(rows))


def _layer(dtype: torch.dtype) -> None:
    ops, x, weight = TritonOps(), torch.zeros(2, HIDDEN, dtype=dtype), torch.ones(HIDDEN, dtype=dtype)
    ops.rms_norm(x, weight, 1e-6)
    ops.add_rms_norm(x, x.clone(), weight, 1e-6)
    ops.silu_mul(torch.zeros(2, 2 * 14336, dtype=dtype))
    for shape in SHAPES:
        few_rows_linear(x, torch.zeros(HIDDEN, HIDDEN, dtype=dtype), None, shape)
    _adapters(dtype)
    addresses, begins = torch.zeros(8, dtype=torch.int64), torch.zeros(9, dtype=torch.int64)
    for pairs in (2, 1024):
        order = torch.zeros(pairs, dtype=torch.int64)
        experts_linear(torch.zeros(pairs // 2, HIDDEN, dtype=dtype), addresses, begins, 28672, order, 2)
    linear(x, torch.zeros(HIDDEN, HIDDEN, dtype=dtype), None)


def _codes(dtype: torch.dtype) -> None:
    """Products of weights that stay codes, for few rows and many; sizes are whole 128s, as in models."""
    for scheme, group in CODES:
        made = made_codes(scheme, 128, 256, group, has_zeros=scheme == LinearScheme.INT4 and group == 128)
        weight = packed(made, CPU, dtype)
        for rows in (FEW_ROWS, MANY_ROWS):
            codes_linear(torch.zeros(rows, 256, dtype=dtype), weight, None, is_exact=False)
    for scheme in BYTE_ROWS:
        weight = packed(made_codes(scheme, 128, 256), CPU, dtype)
        for rows in (FEW_ROWS, MANY_ROWS):
            byte_codes_linear(torch.zeros(rows, 256, dtype=dtype), weight, None, is_exact=False)


def _expert_codes(dtype: torch.dtype) -> None:
    """Of two experts: weights without zeros and with them, and bytes."""
    begins = torch.zeros(3, dtype=torch.int64)
    for scheme, group in ((LinearScheme.FP8, 0), (LinearScheme.INT4, 128), (LinearScheme.INT8_ROWS, 0)):
        made = made_codes(scheme, 128, 256, group, has_zeros=scheme == LinearScheme.INT4)
        experts = ExpertCodes.of([packed(made, CPU, dtype)] * 2)
        for pairs in (2, 256):
            order = torch.zeros(pairs, dtype=torch.int64)
            expert_codes_linear(torch.zeros(pairs // 2, 256, dtype=dtype), experts, begins, order, 2)


def _dependent_launches(dtype: torch.dtype) -> None:
    """The small kernels of a decode layer, attention in items and in equal parts, and a product in shares."""
    ops, x, weight = TritonOps(has_pdl=True), torch.zeros(2, HIDDEN, dtype=dtype), torch.ones(HIDDEN, dtype=dtype)
    ops.add_rms_norm(x, x.clone(), weight, 1e-6)
    ops.silu_mul(torch.zeros(2, 2 * 14336, dtype=dtype))
    few_rows_linear(x, torch.zeros(HIDDEN, HIDDEN, dtype=dtype), None, SHAPES[2], has_pdl=True)
    for balances_kv in (True, False):
        attention = _attention(dtype, dtype, balances_kv=balances_kv, has_pdl=True)
        tables = DeviceTables(128, 8, 64, BLOCK, CPU, attention.context_parts)
        _forward(attention, dtype, 8, tables.metadata(attention, 8), norm=False)


def _adapters(dtype: torch.dtype) -> None:
    table, segments = torch.zeros(8, LAYERS, 4, lora.ENTRY, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int32)
    x, ends = torch.zeros(2, HIDDEN, dtype=dtype), (HEADS * DIM, (HEADS + KV_HEADS) * DIM, (HEADS + 2 * KV_HEADS) * DIM)
    out = torch.zeros(2, ends[-1], dtype=dtype)
    lora.add_adapters(out, x, table[:, 1, 0], segments, ends, lora.scratch(2, CPU))


def _sampling() -> None:
    logits, rows = torch.zeros(8, VOCAB), torch.zeros(8, dtype=torch.int32)
    keys = torch.zeros(8, 2, dtype=torch.int32)
    sampling.sample(logits, torch.zeros(8, 4, dtype=torch.float64), keys)
    split_sampling.sample(logits, torch.zeros(8, 4, dtype=torch.float64), keys)
    sampling.penalise(logits, rows, rows, torch.zeros(8, 3), torch.zeros(8, VOCAB, dtype=torch.int32))
    sampling.mask(logits, rows, torch.zeros(8, VOCAB // 32, dtype=torch.int32))


def _decode_inputs() -> None:
    DeviceTables(1024, max(BATCHES), 512, BLOCK, CPU, ContextParts(66, 32, 64), has_kernel=True).prepare(max(BATCHES))


def _copies() -> None:
    words = DIM * torch.bfloat16.itemsize // 8
    pages = torch.zeros(2, LAYERS, 2, KV_HEADS, BLOCK, words, dtype=torch.int64)
    run, blocks = torch.zeros(2, 2, KV_HEADS, BLOCK, words, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    for is_pack in (True, False):
        for has_sum in (True, False):
            copy_kv(pages, blocks, 1, run, layer_begin=1, is_pack=is_pack, has_sum=has_sum)


def _grid_controls(ptx: str) -> list[str]:
    """Instructions of dependent launch in their order, and where the first access to memory comes."""
    found = re.findall(r"griddepcontrol\.\w+|(?:ld|st|red|atom|cp\.async)\S*\.(?:global|cg|ca)\S*", ptx)
    return ["access" if not name.startswith("griddep") else name for name in found][:3]


def _report(record: Compiled, config: str) -> list[dict[str, Any]]:
    return [
        {
            "kernel": name,
            "config": config,
            "shared": kernel.metadata.shared,
            "warp_group_products": kernel.asm["ptx"].count("wgmma.mma_async"),
            "async_copies": kernel.asm["ptx"].count("cp.async.cg"),
            "launch_pdl": kernel.metadata.launch_pdl,
            "grid_controls": _grid_controls(kernel.asm["ptx"]),
            "wide_accesses": [len(WIDE[name].findall(kernel.asm["ptx"])) for name in ("ld", "st")],
            **resources(kernel.asm["cubin"]),
        }
        for name, kernels in record.kernels.items()
        for kernel in kernels
    ]


def main() -> None:
    found = []
    for config in sys.argv[1:]:
        if config.isdecimal():
            with compiled(int(config)) as record:
                _attend_with_other_heads(int(config))
            found += _report(record, config)
            continue
        if config.startswith(OF_CODES):
            with compiled(int(config.removeprefix(OF_CODES))) as record:
                _codes(torch.bfloat16)
                _expert_codes(torch.bfloat16)
            found += _report(record, config)
            continue
        pages_type, dtype = PRECISIONS[config]
        with compiled() as record:
            _attend(pages_type, dtype)
            if config == "bf16":
                _layer(dtype)
                _sampling()
                _decode_inputs()
                _dependent_launches(dtype)
                _copies()
        found += _report(record, config)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
