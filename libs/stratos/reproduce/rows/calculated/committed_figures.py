"""Claims that measurements of their own answered, by the files that they left in ``benchmarks/results``.

They take hours or a machine to themselves, so that this row reads them and names each file; nothing is measured again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratos.reproduce.gpu_checks import COMMITTED
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import QuotedClaim, at_most, between, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultTable, RowResult

QUALITY, DRAFTS = "quality-2core-cpu.json", "speculation-k-2core-cpu.json"
SCHEMES = "quantised-epyc-two-threads-2core-cpu.json"
LADDERS = ("open-streams-*.json", "open-requests-*.json")
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


def measure(_: RowConditions, folder: Path = COMMITTED) -> RowResult:
    """Read the files."""
    found = {name: _read(name) for name in (QUALITY, DRAFTS, SCHEMES)}
    return RowResult(
        answers=[*_losses(found[QUALITY]), *_speeds(found[SCHEMES]), *_drafts(found[DRAFTS])],
        tables=[
            ResultTable(
                title="Files, and where they were measured", kind=FigureKind.COMMITTED,
                columns=("file", "cpu", "load", "commit"),
                rows=[(name, *_where(one["environment"])) for name, one in found.items()],
            ),
            ResultTable(
                title="Where two cores end: open streams, and requests of one token", kind=FigureKind.COMMITTED,
                columns=("file", "cpu", "load", "commit", "tokens_of_each", "borne", "not_borne", "tokens_per_s",
                         "machine_cores", "profile_of", "largest_parts_percent"),
                rows=[_ladder(path) for pattern in LADDERS for path in sorted(folder.glob(pattern))],
            ),
        ],
    )  # fmt: skip


def _read(name: str) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((COMMITTED / name).read_text(encoding="utf-8"))
    return found


def _where(environment: Mapping[str, Any]) -> tuple[str, float, str]:
    return environment["cpu"], environment["load_average"][0], environment["commit"]


def _ladder(path: Path) -> tuple[str | float, ...]:
    """Outcome of a file of ``scripts.bench.open_streams``; those from before it had an outcome say their last rung."""
    found = json.loads(path.read_text(encoding="utf-8"))
    outcome = found.get("outcome") or {"not_borne": found["rungs"][-1]["streams"]}
    parts = sorted(outcome.get("percent", {}).items(), key=lambda part: -part[1])[:4]
    named = ("borne", "not_borne", "tokens_per_s", "machine_cores", "profile_of")
    return (
        path.name, *_where(found["environment"]), found["tokens"],
        *("" if outcome.get(name) is None else outcome[name] for name in named),
        ", ".join(f"{name} {share:g}" for name, share in parts),
    )  # fmt: skip


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
    found, where = row["draft:4"], f"{row['load']}, {row['streams']} stream, temperature {row['temperature']:g}"
    accepted = f"{found['accepted']} of {found['drafted']} accepted, {where}"
    return [
        _read_answer(exactly("4.9", "4 drafted tokens: 1.5 times as fast in all", 1.5), "speedup", found["speedup"],
                     DRAFTS, where),
        _read_answer(between("1.7", "drafts make code 1.5-2.5 times as fast", 1.5, 2.5), "speedup", found["speedup"],
                     DRAFTS, where),
        _read_answer(at_most("3.13", "less than half accepted is poor: not faster than without", 1), "speedup",
                     found["speedup"], DRAFTS, accepted),
    ]  # fmt: skip


def _read_answer(claim: QuotedClaim, name: str, value: float, file: str, where: str) -> ClaimAnswer:
    return ClaimAnswer(
        claim=claim, own=OwnFigure(name=name, value=value, kind=FigureKind.COMMITTED, how=f"{where}; {file}")
    )
