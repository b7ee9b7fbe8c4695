"""Sequences of 4, 8 and 16 K tokens that one device holds, by the types of weights and KV."""

from __future__ import annotations

from stratos.calculators.formula import Formula
from stratos.calculators.hardware.devices import find_device
from stratos.calculators.memory.gpu_memory import MemoryAsk, estimate_gpu_memory
from stratos.calculators.memory.kv import KvAsk, estimate_kv
from stratos.calculators.models.known import find_shape
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind
from stratos.reproduce.record.claim import exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultTable, RowResult

MODEL, DEVICE = "llama-2-13b", "a100-80"
TYPES = (("bfloat16", "bfloat16"), ("bfloat16", "int8"), ("int4", "bfloat16"), ("int4", "int8"))
"""Weights and KV."""
REQUEST = Formula("request_bytes", "context * token_bytes")
EQUAL = Formula("equal_tokens", "weight_bytes / token_bytes")


def measure(_: RowConditions) -> RowResult:
    """All types."""
    shape, device = find_shape(MODEL), find_device(DEVICE)
    rows = []
    for weights, kv_dtype in TYPES:
        sheet = estimate_gpu_memory(shape, MemoryAsk(weights=weights, kv_dtype=kv_dtype), device)
        weight_bytes = sheet["weights_bytes"]
        token_bytes = estimate_kv(shape, KvAsk(weights=weights, kv_dtype=kv_dtype))["token_bytes"]
        fits = sheet.grids[0]
        column = fits.columns.index("sequences")
        equal = EQUAL.of(weight_bytes=weight_bytes, token_bytes=token_bytes)
        rows.append((weights, kv_dtype, weight_bytes / 1e9, *(row[column] for row in fits.rows), round(equal)))
    token_bytes = estimate_kv(shape, KvAsk())["token_bytes"]
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=exactly("0.1", "a request of 4,096 tokens of a 13B model: 3.36 GB", 3.36e9, "bytes"),
                recomputed=REQUEST(context=4096, token_bytes=token_bytes),
            )
        ],
        tables=[
            ResultTable(
                title=f"Sequences of {MODEL} that an {DEVICE} holds", kind=FigureKind.CALCULATED,
                columns=("weights", "kv", "weights_gb", "of_4_k", "of_8_k", "of_16_k", "kv_equals_weights_at_tokens"),
                rows=rows,
            )
        ],
        notes=["Run-time and activations are taken off as `stratos plan memory` does."],
    )  # fmt: skip
