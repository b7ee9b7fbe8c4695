"""Prompt x output x batch, as published for a 7B model: speed and latency, which Little's law ties together.

A batch of ``n`` streams that begin together and emit ``o`` tokens each, at ``x`` tokens per second in all, takes
``n * o / x`` seconds.  A latency below that is of another load than the speed beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stratos.calculators.formula import Formula
from stratos.engine.settings import SchedulerConfig
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.driving import DrivenRun
from stratos.reproduce.load.loaded import load_model
from stratos.reproduce.load.virtual import VirtualEngine, run_virtual
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import Cell, ResultTable, RowResult
from stratos.sim.runner import StepCosts

LATENCY = Formula("latency_ms", "1000 * batch * output_tokens / tokens_per_s")
COLUMNS = ("prompt", "output", "batch", "tokens_per_s", "latency_ms", "ttft_p50_ms", "itl_p50_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPoint:
    """One published line."""

    prompt: int
    output: int
    batch: int
    tokens_per_s: int
    latency_ms: int

    def asks(self, part: int = 1) -> list[LoadAsk]:
        """The batch, all at once; ``part`` shortens prompts and outputs."""
        ask = LoadAsk(num_prompt_tokens=self.prompt // part, num_output_tokens=self.output // part)
        return [ask] * self.batch


POINTS = (
    GridPoint(prompt=128, output=128, batch=64, tokens_per_s=3200, latency_ms=450),
    GridPoint(prompt=512, output=128, batch=32, tokens_per_s=2800, latency_ms=680),
    GridPoint(prompt=1024, output=256, batch=16, tokens_per_s=2400, latency_ms=1200),
    GridPoint(prompt=2048, output=512, batch=8, tokens_per_s=2000, latency_ms=2500),
)
SHAPES = ((128, 128), (512, 128), (1024, 256), (2048, 512))
BATCHES = (1, 8, 16, 32, 64)


def measure(conditions: RowConditions) -> RowResult:
    """Published points and the grid that they lie on, simulated; points shortened on this machine."""
    part, points = conditions.sized(smoke=(32, POINTS[:2]), short=(4, POINTS), full=(1, POINTS))
    batches = conditions.sized(smoke=BATCHES[:1], short=(1, 8, 32), full=BATCHES)
    model = load_model(conditions)
    simulated = {point: _simulated(point.asks()) for point in points}
    measured = [
        _row(point, part, model.run(SchedulerConfig(max_num_seqs=point.batch), point.asks(part), seed=conditions.seed))
        for point in points
    ]
    where = "an 8B model in 16 bits on a 24 GB card"
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=exactly(
                    "4.12",
                    f"7B, {point.prompt}/{point.output}, batch of {point.batch}: {point.tokens_per_s} tokens/s, "
                    f"{point.latency_ms} ms",
                    point.latency_ms,
                    "ms",
                ),
                recomputed=LATENCY(
                    batch=point.batch, output_tokens=point.output, tokens_per_s=point.tokens_per_s
                ),
                own=OwnFigure(name="latency_ms", value=_latency_ms(run), kind=FigureKind.SIMULATED, how=where),
            )
            for point, run in simulated.items()
        ],
        tables=[
            ResultTable(
                title=f"Every shape with every batch, simulated: {where}", kind=FigureKind.SIMULATED, columns=COLUMNS,
                rows=_grid(batches),
            ),
            ResultTable(
                title=f"Published points on this machine, lengths over {part}: {model.name}",
                kind=FigureKind.MEASURED, columns=COLUMNS, rows=measured,
            ),
        ],
    )  # fmt: skip


def _simulated(asks: Sequence[LoadAsk]) -> DrivenRun:
    scheduler = SchedulerConfig(max_num_seqs=len(asks))
    return run_virtual(VirtualEngine(scheduler=scheduler, costs=StepCosts()), asks)


def _grid(batches: Sequence[int]) -> list[tuple[Cell, ...]]:
    points = [
        GridPoint(prompt=prompt, output=output, batch=batch, tokens_per_s=0, latency_ms=0)
        for prompt, output in SHAPES
        for batch in batches
    ]
    return [_row(point, 1, _simulated(point.asks())) for point in points]


def _row(point: GridPoint, part: int, run: DrivenRun) -> tuple[Cell, ...]:
    return (
        point.prompt // part, point.output // part, point.batch, run.tokens_per_s, _latency_ms(run),
        1e3 * statistics.median(run.ttfts_s()), 1e3 * statistics.median(run.gaps_s()),
    )  # fmt: skip


def _latency_ms(run: DrivenRun) -> float:
    return 1e3 * statistics.median(run.latencies_s())
