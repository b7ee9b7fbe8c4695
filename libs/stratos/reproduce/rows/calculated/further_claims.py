"""Claims that no experiment of the other rows is about: recomputed from the inputs that were quoted with them.

A claim without inputs, or of a kind that other documents answer, stands in a table with the place of its answer;
where there is none, the table says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.calculators.hardware.prices import price_lists
from stratos.reproduce.record.answer import FigureKind
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultTable, RowResult
from stratos.reproduce.rows.calculated.bottlenecks import BOTTLENECKS
from stratos.reproduce.rows.calculated.quoted_memory import memory_answers
from stratos.reproduce.rows.calculated.quoted_money import money_answers
from stratos.reproduce.rows.calculated.quoted_speed import speed_answers


@dataclass(frozen=True, slots=True)
class AnsweredElsewhere:
    """A claim, and the command, file or test that answers it."""

    claim: str
    subject: str
    place: str


ELSEWHERE = (
    AnsweredElsewhere("1.13", "a start ahead of a known peak avoids 80-90 % of cold starts",
                      "no figure here; a spare takes a place without a start: "
                      "tests/integration/platform/test_spares.py"),
    AnsweredElsewhere("3.10", "prices per hour of seven devices",
                      "the table of price lists in this row; they differ by the publication, not by the device"),
    AnsweredElsewhere("3.16", "exercises: batch 1 to 32, quality, cost by volume, drafts by length",
                      "`stratos reproduce batch-sweep`, `stratos plan breakeven`, row committed-figures"),
    AnsweredElsewhere("3.17", "problems: settings that do not start, a tenfold cost, a quality that fell",
                      "`stratos doctor`, `stratos plan breakeven`, strata of `stratos evaluate`"),
    AnsweredElsewhere("3.8", "int8 by GPTQ costs 0.5-1.5 %, by AWQ 0.3-1.0 %",
                      "neither is made here: int8 is rounded, and row committed-figures has what that costs"),
    AnsweredElsewhere("4.4", "a cost table of four devices, without the speeds behind it", "`stratos plan cost`"),
    AnsweredElsewhere("4.10", "more than 200 sequences at once", "`stratos reproduce kv-concurrency`"),
    AnsweredElsewhere("4.15", "99.9 % of the time available",
                      "no figure of a year here; faults and what they cost: `make chaos`"),
    AnsweredElsewhere("4.16", "marks of an autoscaler, and policies by load, latency and length",
                      "tests/unit/planning/test_pool_planner.py, `stratos reproduce policies`"),
)  # fmt: skip


def measure(_: RowConditions) -> RowResult:
    """All of them; nothing is run."""
    prices = [(name, device, usd) for name, one in price_lists().items() for device, usd in one["usd_per_hour"].items()]
    return RowResult(
        answers=[*memory_answers(), *speed_answers(), *money_answers()],
        tables=[
            ResultTable(
                title="Claims that are answered elsewhere", kind=FigureKind.CALCULATED,
                columns=("claim", "subject", "place"), rows=[(one.claim, one.subject, one.place) for one in ELSEWHERE],
            ),
            ResultTable(
                title="Bottlenecks, the switch against each, and what measures it", kind=FigureKind.CALCULATED,
                columns=("claim", "bottleneck", "switch", "row", "ablation"),
                rows=[("2.4", one.limit, one.switch, one.row, one.ablation) for one in BOTTLENECKS],
            ),
            ResultTable(
                title="Prices of a device's hour by price list", kind=FigureKind.CALCULATED,
                columns=("price_list", "device", "usd_per_hour"), rows=prices,
            ),
        ],
    )  # fmt: skip
