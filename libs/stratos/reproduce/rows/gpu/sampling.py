"""Sampling on the device against logits that are copied to the host: sorted there row by row, and by our own sampler.

A time runs from logits on the device to token ids on the host.  All ways draw from the same distribution (temperature
0.8, top-k 50, top-p 0.95) with the same noise, so they must choose the same tokens; that is counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stratos.reproduce.gpu_checks import GpuCheck
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import between
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult

SMALL = 32_000
WAYS = {
    "host_sorted": "to the host, sorted there",
    "host": "to the host, our sampler",
    "sorted_on_device": "sorted on the device",
    "split": "ours on the device",
}
"""Reports before 2026-11-26 have no first one."""
OURS, DIFFERING = "split", "differing_tokens"
_NAME = re.compile(r"top_k_top_p_(\d+)x(\d+)")


def read(check: GpuCheck) -> RowResult:
    """Every vocabulary and batch of section ``sampling``."""
    found = _times_ms(check.results("sampling"))
    vocabularies, batches = (sorted({key[place] for key in found}) for place in (0, 1))
    num_different = sum(sum(one[DIFFERING].values()) for one in found.values())
    num_tokens = sum(batch * len(one[DIFFERING]) for (_, batch), one in found.items())
    ways = [way for way in WAYS if all(f"{way}_ms_per_token" in one for one in found.values())]
    one_row = found[SMALL, 1][f"{ways[0]}_ms_per_token"]
    how = f"vocabulary of 32,000, one row, logits on an {check.device}"
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=between("0.4", "sampling on the CPU costs 2-8 ms a token", 2, 8, "ms"),
                own=OwnFigure(name=f"{ways[0]}_ms", value=one_row, kind=FigureKind.MEASURED, how=how),
            ),
            ClaimAnswer(
                claim=between("0.4", "400-1,600 ms for 200 tokens", 400, 1600, "ms"),
                own=OwnFigure(name=f"{ways[0]}_ms_of_200", value=200 * one_row, kind=FigureKind.MEASURED, how=how),
            ),
        ],
        tables=[
            ResultTable(
                title="Milliseconds for a token, by the rows of a batch", kind=FigureKind.MEASURED,
                columns=("vocabulary", "rows", *(f"{way}_ms" for way in ways), f"{OURS}_against_{ways[0]}"),
                rows=[(*key, *_cells(found[key], ways)) for key in sorted(found)],
            )
        ],
        plots=[
            ResultPlot(
                title="Sampling a token", kind=FigureKind.MEASURED, x_label="rows of a batch", y_label="ms per token",
                is_x_log=True, is_y_log=True,
                lines={
                    f"{text}, {vocabulary // 1000} K": [
                        (batch, found[vocabulary, batch][f"{way}_ms_per_token"])
                        for batch in batches if (vocabulary, batch) in found
                    ]
                    for vocabulary in vocabularies for way, text in WAYS.items() if way in (ways[0], OURS)
                },
            )
        ],
        notes=[
            f"Tokens that a way chose otherwise than our sampler on the host: {num_different} of {num_tokens}.",
            *(f"{way}: {WAYS[way]}." for way in ways),
        ],
    )  # fmt: skip


def _times_ms(results: Mapping[str, Any]) -> dict[tuple[int, int], Mapping[str, Any]]:
    """Results with top-k and top-p by vocabulary and rows; those for which there was no time are left out."""
    named = ((_NAME.fullmatch(name), value) for name, value in results.items())
    return {(int(match[2]), int(match[1])): value for match, value in named if match and DIFFERING in value}


def _cells(found: Mapping[str, Any], ways: Sequence[str]) -> tuple[float, ...]:
    times = {way: found[f"{way}_ms_per_token"] for way in ways}
    return *times.values(), times[ways[0]] / times[OURS]
