"""Laws of queues on our own queue: Little's law, and how latency grows with utilisation.

Requests with exponential outputs arrive at random at an engine of one row, whose steps take 10 ms: an M/M/1 queue with
a mean service time ``s``.  There the mean time from arrival to end is ``s / (1 - rho)``, which is not exponential in
``rho``: from 0.8 to 0.9 it doubles, from 0.9 to 0.95 it doubles again.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from random import Random

from stratos.calculators.formula import Formula
from stratos.engine.contract.results import EngineStatus
from stratos.engine.settings import SchedulerConfig
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.virtual import VirtualEngine, run_virtual
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult

STEP_S, MEAN_TOKENS, PROMPT_TOKENS = 0.010, 6, 16
WINDOW = (0.1, 0.9)
"""Part of the run that counts: L is of all that was inside then, lambda and W of what arrived then."""
RHOS = (0.3, 0.5, 0.7, 0.8, 0.9)
COLUMNS = ("rho", "busy_share", "arrivals_per_s", "residence_s", "by_formula_s", "L", "lambda_W", "ratio")
RESIDENCE = Formula("residence_s", "service_s / (1 - rho)")
GROWTH = Formula("growth", "(1 - rho) / (1 - higher_rho)")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRun:
    """One utilisation."""

    rho: float
    """Busy share of the time, as it came out."""
    arrivals_per_s: float
    residence_s: float
    """Mean from arrival to end."""
    num_inside: float
    """Mean over time of the requests that wait or run."""
    service_s: float

    @property
    def little_ratio(self) -> float:
        """L over lambda W: 1 by Little's law, whatever the distributions are."""
        return self.num_inside / (self.arrivals_per_s * self.residence_s)


def measure(conditions: RowConditions) -> RowResult:
    """All utilisations."""
    count = conditions.sized(smoke=60, short=2500, full=10_000)
    rhos = conditions.sized(smoke=(0.5, 0.9), short=RHOS, full=(*RHOS, 0.95))
    found = {rho: _run(rho, count, conditions.seed) for rho in rhos}
    worst = max((one.little_ratio for one in found.values()), key=lambda ratio: abs(ratio - 1))
    low, high = (0.8, 0.9) if 0.8 in found else rhos[:2]
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=exactly("3.7", "L = lambda W", 1, "x"),
                own=OwnFigure(name="little_ratio", value=worst, kind=FigureKind.SIMULATED, how="farthest from 1"),
            ),
            ClaimAnswer(
                claim=exactly("3.7", "latency grows exponentially above a utilisation of 0.8", 2, "x from 0.8 to 0.9"),
                recomputed=GROWTH(rho=0.8, higher_rho=0.9),
                own=OwnFigure(
                    name="growth", value=found[high].residence_s / found[low].residence_s, kind=FigureKind.SIMULATED,
                    how=f"from {low} to {high}",
                ),
            ),
        ],
        tables=[
            ResultTable(
                title=f"{count} requests, exponential outputs of {MEAN_TOKENS} tokens in the mean, one row",
                kind=FigureKind.SIMULATED,
                columns=COLUMNS,
                rows=[
                    (
                        rho, one.rho, one.arrivals_per_s, one.residence_s,
                        float(RESIDENCE.of(service_s=one.service_s, rho=one.rho)), one.num_inside,
                        one.arrivals_per_s * one.residence_s, one.little_ratio,
                    )
                    for rho, one in found.items()
                ],
            )
        ],
        plots=[
            ResultPlot(
                title="Time from arrival to end by utilisation (simulated)", kind=FigureKind.SIMULATED, x_label="rho",
                y_label="s",
                lines={
                    "our queue": [(rho, one.residence_s) for rho, one in found.items()],
                    "s / (1 - rho)": [
                        (rho, float(RESIDENCE.of(service_s=one.service_s, rho=one.rho))) for rho, one in found.items()
                    ],
                },
            )
        ],
        notes=["The figure behind 'exponentially' is that of 1 / (1 - rho), which is what the queue's formula gives."],
    )  # fmt: skip


def _run(rho: float, count: int, seed: int) -> QueueRun:
    rng, at_s, asks = Random(seed), 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rho / (MEAN_TOKENS * STEP_S))
        tokens = max(1, round(rng.expovariate(1 / MEAN_TOKENS)))
        asks.append(LoadAsk(num_prompt_tokens=PROMPT_TOKENS, num_output_tokens=tokens, arrival_s=at_s))
    busy: list[tuple[float, EngineStatus]] = []
    run = run_virtual(
        VirtualEngine(scheduler=SchedulerConfig(max_num_seqs=1)),
        asks, seed=seed, on_step=lambda seconds, status: busy.append((seconds, status)),
    )  # fmt: skip
    begin_s, end_s = (run.began_s + share * run.duration_s for share in WINDOW)
    seen = [outcome for outcome in run.outcomes if begin_s <= outcome.arrived_s < end_s]
    inside_s = sum(max(0.0, min(one.ended_s, end_s) - max(one.arrived_s, begin_s)) for one in run.outcomes)
    busy_s = sum(seconds for seconds, _ in busy)
    return QueueRun(
        rho=busy_s / run.duration_s,
        arrivals_per_s=len(seen) / (end_s - begin_s),
        residence_s=statistics.fmean(one.ended_s - one.arrived_s for one in seen),
        num_inside=inside_s / (end_s - begin_s),
        service_s=busy_s / count,
    )
