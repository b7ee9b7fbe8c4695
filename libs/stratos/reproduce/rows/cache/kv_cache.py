"""Decoding without a KV cache: speed and work of a token by the length of its context.

Without a cache every output token computes the whole sequence again, so the work of a token grows with its position,
and that of an answer with the square of its length.
"""

from __future__ import annotations

from stratos.calculators.formula import Formula
from stratos.calculators.memory.kv import KvAsk, estimate_kv
from stratos.calculators.models.known import find_shape
from stratos.reproduce.load.decode_speed import LENGTHS, NUM_GAPS, decode_at
from stratos.reproduce.load.loaded import load_model
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_least, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult

ARM = "no cache"
CLAIMED_BYTES = {512: (268e6, "268 MB"), 2048: (1.07e9, "1.07 GB"), 4096: (2.15e9, "2.15 GB"), 8192: (4.3e9, "4.3 GB")}
"""KV of a 7B model with a KV head for each query head, by the length of its context."""
KV = Formula("kv_bytes", "tokens * token_bytes")


def measure(conditions: RowConditions) -> RowResult:
    """Every length, one stream."""
    model = load_model(conditions)
    lengths = conditions.sized(smoke=LENGTHS[:2], short=LENGTHS, full=LENGTHS)
    found = {length: decode_at(model, ARM, length, conditions.seed) for length in lengths}
    token_bytes = int(estimate_kv(find_shape("llama-2-7b"), KvAsk())["token_bytes"])
    last_length = lengths[-1]
    first, last = found[lengths[0]], found[last_length]
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=at_least("0.11", "without a cache a token computes the whole sequence", last_length),
                own=OwnFigure(
                    name="computed_tokens_per_token", value=last.computed_per_token, kind=FigureKind.SIMULATED,
                    how=f"context of {last_length}",
                ),
            ),
            *(
                ClaimAnswer(
                    claim=exactly("3.3", f"KV of a 7B model at {length} tokens: {text}", claimed, "bytes"),
                    recomputed=KV(tokens=length, token_bytes=token_bytes),
                )
                for length, (claimed, text) in CLAIMED_BYTES.items()
            ),
        ],
        tables=[
            ResultTable(
                title="Work of a token", kind=FigureKind.SIMULATED, columns=("context", "computed_tokens_per_token"),
                rows=[(length, one.computed_per_token) for length, one in found.items()],
            ),
            ResultTable(
                title=f"Without a cache: {model.name}", kind=FigureKind.MEASURED,
                columns=("context", "tokens_per_s", "ms_per_token"),
                rows=[(length, one.tokens_per_s, 1e3 / one.tokens_per_s) for length, one in found.items()],
            ),
        ],
        plots=[
            ResultPlot(
                title="Decoding without a KV cache", kind=FigureKind.MEASURED, x_label="context, tokens",
                y_label="ms per token", is_x_log=True, is_y_log=True,
                lines={ARM: [(length, 1e3 / one.tokens_per_s) for length, one in found.items()]},
            )
        ],
        notes=[
            f"Medians of {NUM_GAPS} gaps between tokens. From {lengths[0]} to {last_length} tokens of context, a token "
            f"takes {first.tokens_per_s / last.tokens_per_s:.3g} times as long."
        ],
    )  # fmt: skip
