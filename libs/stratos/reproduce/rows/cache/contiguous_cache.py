"""No cache, a contiguous cache and a paged one, side by side: speed and bytes of a sequence by its length."""

from __future__ import annotations

from stratos.calculators.formula import Formula
from stratos.reproduce.load.decode_speed import ARMS, LENGTHS, decode_at
from stratos.reproduce.load.loaded import load_model
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_most, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult

GB = 1e9
INT4 = Formula("int4_weight_bytes", "parameters / 2")
EQUAL = Formula("equal_tokens", "weight_bytes / token_bytes")
USED = Formula("slot_share", "mean_tokens / slot_tokens")


def measure(conditions: RowConditions) -> RowResult:
    """Every arm at every length, one stream."""
    model = load_model(conditions)
    lengths = conditions.sized(smoke=LENGTHS[:2], short=LENGTHS, full=LENGTHS)
    found = {arm: {length: decode_at(model, arm, length, conditions.seed) for length in lengths} for arm in ARMS}
    naive, contiguous, paged = found.values()
    last = lengths[-1]
    how = f"{model.name}, context of {last}"
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=at_most("3.3", "KV of a 7B model at 4 K exceeds its int4 weights", 2.15e9, "bytes"),
                recomputed=INT4(parameters=7e9),
            ),
            ClaimAnswer(
                claim=exactly("3.3", "the same: the length at which they are equal", 4096, "tokens"),
                recomputed=EQUAL(weight_bytes=3.5e9, token_bytes=524288),
            ),
            ClaimAnswer(
                claim=at_most("3.4", "a contiguous cache uses 35 % of its memory", 0.35),
                recomputed=USED(mean_tokens=1000, slot_tokens=4096),
            ),
            ClaimAnswer(
                claim=exactly("0.11", "with a cache a token computes itself alone", 1, "token"),
                own=OwnFigure(
                    name="computed_tokens_per_token", value=paged[last].computed_per_token, kind=FigureKind.SIMULATED,
                    how=how,
                ),
            ),
        ],
        tables=[
            ResultTable(
                title="Tokens per second of one stream", kind=FigureKind.MEASURED,
                columns=("context", *(f"{arm}_tokens_per_s" for arm in ARMS), "contiguous_gain", "paged_gain"),
                rows=[
                    (
                        length, *(found[arm][length].tokens_per_s for arm in ARMS),
                        *(one[length].tokens_per_s / naive[length].tokens_per_s for one in (contiguous, paged)),
                    )
                    for length in lengths
                ],
            ),
            ResultTable(
                title=f"Bytes of KV that one sequence holds: {model.name}", kind=FigureKind.SIMULATED,
                columns=("context", "contiguous_bytes", "paged_bytes", "share"),
                rows=[
                    (length, contiguous[length].held_bytes, paged[length].held_bytes,
                     paged[length].held_bytes / contiguous[length].held_bytes)
                    for length in lengths
                ],
            ),
        ],
        plots=[
            ResultPlot(
                title="Decoding with and without a KV cache", kind=FigureKind.MEASURED, x_label="context, tokens",
                y_label="tokens/s", is_x_log=True, is_y_log=True,
                lines={arm: [(length, one.tokens_per_s) for length, one in by.items()] for arm, by in found.items()},
            )
        ],
        notes=["A contiguous cache takes the KV of a whole context at admission, a paged one a block at a time."],
    )  # fmt: skip
