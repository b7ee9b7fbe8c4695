"""Poisson arrivals under static and continuous batching: a published overload, and shares of the capacity.

Capacity is the rate at which a queue that never ends is served by continuous batching.  Requests arrive whether or not
the engine keeps up, and latency counts from the arrival.  Above capacity there is no steady state: the queue and every
percentile grow with the length of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from stratos.engine.settings import SchedulerConfig
from stratos.engine.switches import Baselines
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.driving import DrivenRun, few_notes, percent_point
from stratos.reproduce.load.loaded import load_model
from stratos.reproduce.load.virtual import VirtualEngine, run_virtual
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_most
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import Cell, ResultPlot, ResultTable, RowResult
from stratos.sim.runner import StepCosts

PUBLISHED_RATE = 10.0
LEAST_OUTPUT, MOST_OUTPUT, PROMPT_TOKENS = 100, 500, 64
SHARES = (0.5, 0.7, 0.9)
JUDGED_SHARE = 0.7
ROWS = 32
BATCHINGS = {
    name: SchedulerConfig(max_num_seqs=ROWS, baseline=baseline)
    for name, baseline in (("static", Baselines(batching="static")), ("continuous", Baselines()))
}
PERCENTS = (50, 95, 99)
COLUMNS = (
    "load", "arrivals_per_s", "batching", "completed_per_s",
    *(f"{name}_p{percent}_ms" for name in ("ttft", "itl", "e2e") for percent in PERCENTS),
)  # fmt: skip
RunLoad = Callable[[SchedulerConfig, Sequence[LoadAsk]], DrivenRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """One engine under all loads."""

    run: RunLoad
    num_requests: int
    seed: int
    output_part: int = 1
    """Divisor of the published outputs, where seconds count."""

    def asks(self, rate: float) -> list[LoadAsk]:
        """Arrivals at a rate; all at once for 0."""
        rng, at_s, asks = Random(self.seed), 0.0, []
        for _ in range(self.num_requests):
            at_s += rng.expovariate(rate) if rate else 0.0
            count = rng.randint(LEAST_OUTPUT, MOST_OUTPUT) // self.output_part
            asks.append(LoadAsk(num_prompt_tokens=PROMPT_TOKENS, num_output_tokens=count, arrival_s=at_s))
        return asks

    def capacity(self) -> float:
        """Requests per second of a queue that is never empty: while some wait, by continuous batching."""
        run = self.run(BATCHINGS["continuous"], self.asks(0))
        times_s = [time_s - run.began_s for outcome in run.outcomes for time_s in outcome.token_times_s]
        last_start_s = max(outcome.token_times_s[0] for outcome in run.outcomes) - run.began_s
        is_queue = self.num_requests > ROWS  # else all begin at once
        full_s = last_start_s if is_queue else run.duration_s
        num_tokens = sum(time_s <= full_s for time_s in times_s)
        return num_tokens / full_s / (len(times_s) / self.num_requests)

    def table(self) -> list[tuple[Cell, ...]]:
        """Rows of all loads and both batchings."""
        capacity = self.capacity()
        loads = {"published": PUBLISHED_RATE, **{f"{share:g} of capacity": share * capacity for share in SHARES}}
        return [
            (load, rate, name, *_figures(self.run(scheduler, self.asks(rate))))
            for load, rate in loads.items()
            for name, scheduler in BATCHINGS.items()
        ]


def measure(conditions: RowConditions) -> RowResult:
    """Both batchings under every load, simulated and on this machine."""
    part = conditions.sized(smoke=20, short=1, full=1)
    num_simulated = conditions.sized(smoke=40, short=160, full=600)
    num_measured = conditions.sized(smoke=8, short=48, full=48)
    model = load_model(conditions)
    simulated = OpenLoop(
        run=lambda scheduler, asks: run_virtual(VirtualEngine(scheduler=scheduler, costs=StepCosts()), asks),
        num_requests=num_simulated, seed=conditions.seed, output_part=part,
    ).table()  # fmt: skip
    measured = OpenLoop(
        run=lambda scheduler, asks: model.run(scheduler, asks, seed=conditions.seed),
        num_requests=num_measured, seed=conditions.seed, output_part=part,
    ).table()  # fmt: skip
    return RowResult(
        answers=[
            *_answers(simulated, FigureKind.SIMULATED, "an 8B model in 16 bits on a 24 GB card"),
            *_answers(measured, FigureKind.MEASURED, model.name),
        ],
        tables=[
            ResultTable(
                title=f"Simulated: an 8B model in 16 bits on a 24 GB card, {num_simulated} requests",
                kind=FigureKind.SIMULATED, columns=COLUMNS, rows=simulated,
            ),
            ResultTable(
                title=f"On this machine: {model.name}, {num_measured} requests", kind=FigureKind.MEASURED,
                columns=COLUMNS, rows=measured,
            ),
        ],
        plots=[
            ResultPlot(
                title="p95 of TTFT by load (simulated)", kind=FigureKind.SIMULATED, x_label="arrivals/s", y_label="ms",
                is_y_log=True,
                lines={
                    name: sorted((_number(row, "arrivals_per_s"), _number(row, "ttft_p95_ms"))
                                 for row in simulated if row[2] == name)
                    for name in BATCHINGS
                },
            )
        ],
        notes=[_overload_note(simulated), *few_notes(num_measured)],
    )  # fmt: skip


def _figures(run: DrivenRun) -> list[float]:
    distributions = (run.ttfts_s(), run.gaps_s(), run.latencies_s())
    percentiles = [1e3 * percent_point(values, percent) for values in distributions for percent in PERCENTS]
    return [len(run.outcomes) / run.duration_s, *percentiles]


def _answers(table: Sequence[tuple[Cell, ...]], kind: FigureKind, where: str) -> list[ClaimAnswer]:
    load = f"{JUDGED_SHARE:g} of capacity"
    row = next(row for row in table if row[0] == load and row[2] == "continuous")
    claims = (
        (at_most("2.4", "TTFT p50 below 300 ms", 300, "ms"), "ttft_p50_ms"),
        (at_most("2.4", "TTFT p99 below 1 s", 1000, "ms"), "ttft_p99_ms"),
        (at_most("2.4", "TPOT below 40 ms", 40, "ms"), "itl_p50_ms"),
    )
    return [
        ClaimAnswer(
            claim=claim,
            own=OwnFigure(name=name, value=_number(row, name), kind=kind, how=f"continuous, {load}, {where}"),
        )
        for claim, name in claims
    ]


def _overload_note(table: Sequence[tuple[Cell, ...]]) -> str:
    share, half = SHARES[0], next(row for row in table if row[0] != "published")
    capacity = _number(half, "arrivals_per_s") / share
    if capacity > PUBLISHED_RATE:
        return f"The simulated engine's capacity of {capacity:.3g} requests/s is above the published rate."
    return (
        f"The published rate of {PUBLISHED_RATE:g} requests/s is an overload of the simulated engine, which can serve "
        f"{capacity:.3g}/s: its percentiles say how long the run was."
    )


def _number(row: Sequence[Cell], column: str) -> float:
    return float(row[COLUMNS.index(column)])
