"""Claims that measurements of their own answered, by the files that they left in ``benchmarks/results``.

They take hours or a machine to themselves, so that this row reads them and names each file; nothing is measured again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stratos.reproduce.gpu_checks import COMMITTED
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import QuotedClaim, at_most, between, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultTable, RowResult

QUALITY, DRAFTS, SCHEMES = "quality-2core-cpu.json", "speculation-k-2core-cpu.json", "quantised-2core-cpu.json"
LOSSES = (
    (at_most("3.8", "fp8 costs less than 0.5 % of perplexity", 0.005), "fp8-rtn"),
    (between("3.8", "int4 by GPTQ costs 2-15 %", 0.02, 0.15), "int4-gptq, g64"),
    (between("3.8", "int4 by AWQ costs 1-10 %", 0.01, 0.10), "int4-awq, g64"),
    (at_most("4.6", "int8 costs less than 1 %", 0.01), "int8-rtn"),
    (between("4.6", "int4 by GPTQ costs 2-3 %", 0.02, 0.03), "int4-gptq, g64"),
    (between("4.6", "int4 by AWQ costs 1-2 %", 0.01, 0.02), "int4-awq, g64"),
)
SPEEDS = (
    (exactly("4.6", "throughput of int8: 120 % of 16 bits", 1.2), "int8"),
    (exactly("4.6", "throughput of int4: 150 % of 16 bits", 1.5), "int4"),
)


def measure(_: RowConditions) -> RowResult:
    """Read the files."""
    found = {name: _read(name) for name in (QUALITY, DRAFTS, SCHEMES)}
    return RowResult(
        answers=[*_losses(found[QUALITY]), *_speeds(found[SCHEMES]), *_drafts(found[DRAFTS])],
        tables=[
            ResultTable(
                title="Files, and where they were measured", kind=FigureKind.COMMITTED,
                columns=("file", "cpu", "load", "commit"),
                rows=[(name, *_where(one["environment"])) for name, one in found.items()],
            )
        ],
    )  # fmt: skip


def _read(name: str) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((COMMITTED / name).read_text(encoding="utf-8"))
    return found


def _where(environment: Mapping[str, Any]) -> tuple[str, float, str]:
    return environment["cpu"], environment["load_average"][0], environment["commit"]


def _losses(quality: Mapping[str, Any]) -> list[ClaimAnswer]:
    """Shares by which perplexity rose."""
    by_name = {row["name"]: row["loss"] for row in quality["rows"]}
    return [_read_answer(claim, "perplexity_loss", by_name[name], QUALITY, name) for claim, name in LOSSES]


def _speeds(schemes: Mapping[str, Any]) -> list[ClaimAnswer]:
    load = schemes["rows"][0]
    return [_read_answer(claim, "times_as_fast", load[name]["times_as_fast"], SCHEMES, load["load"])
            for claim, name in SPEEDS]  # fmt: skip


def _drafts(drafts: Mapping[str, Any]) -> list[ClaimAnswer]:
    """A draft model that drafts four tokens, one greedy stream."""
    row = drafts["rows"][0]
    claim = exactly("4.9", "4 drafted tokens: 1.5 times as fast in all", 1.5)
    where = f"{row['load']}, {row['streams']} stream, temperature {row['temperature']:g}"
    return [_read_answer(claim, "speedup", row["draft:4"]["speedup"], DRAFTS, where)]


def _read_answer(claim: QuotedClaim, name: str, value: float, file: str, where: str) -> ClaimAnswer:
    return ClaimAnswer(
        claim=claim, own=OwnFigure(name=name, value=value, kind=FigureKind.COMMITTED, how=f"{where}; {file}")
    )
