"""Static against continuous batching, with the batches of published examples: formula, simulation, engine.

A static batch runs until its longest output has ended; continuous batching refills a row as soon as one has.  With
outputs ``n_i`` in a batch of ``r`` rows and steps of equal duration, static batching emits ``sum(n_i)`` tokens in
``max(n_i)`` steps, and no batching emits more than ``r`` tokens a step.  So the gain is at most
``r * max(n_i) / sum(n_i)``, reached only where the queue never ends: one batch alone gains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from stratos.calculators.formula import Formula
from stratos.engine.settings import SchedulerConfig
from stratos.engine.switches import Baselines
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.driving import DrivenRun
from stratos.reproduce.load.lengths import CONTEXT_TOKENS, log_normal_lengths
from stratos.reproduce.load.loaded import LoadedModel, load_model
from stratos.reproduce.load.virtual import TEN_MS_STEPS, VirtualEngine, run_virtual
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import between, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult

PROMPT_TOKENS = 16
BOUND = Formula("most_gain", "rows * longest / tokens")
STATIC = Formula("static_tokens_per_s", "tokens / (longest * step_s)")
CONTINUOUS = Formula("continuous_tokens_per_s", "rows / step_s")
BATCHINGS = {
    "static": Baselines(batching="static"),
    "continuous": Baselines(),
}
COLUMNS = (
    "outputs", "rows", "batches", "static_tokens_per_s", "continuous_tokens_per_s", "gain", "most_gain", "of_most",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class UnequalBatch:
    """Outputs of one batch, which the load repeats."""

    name: str
    outputs: tuple[int, ...]

    @property
    def most_gain(self) -> float:
        return float(BOUND.of(rows=len(self.outputs), longest=max(self.outputs), tokens=sum(self.outputs)))

    def asks(self, num_batches: int) -> list[LoadAsk]:
        """The load: all requests at once, batch after batch."""
        return [
            LoadAsk(num_prompt_tokens=PROMPT_TOKENS, num_output_tokens=count)
            for _ in range(num_batches)
            for count in self.outputs
        ]


SEVEN_AND_ONE = UnequalBatch(name="7 x 50 and 500", outputs=(50,) * 7 + (500,))
THREE = UnequalBatch(name="500, 10, 200", outputs=(500, 10, 200))
OTHER_THREE = UnequalBatch(name="100, 500, 50", outputs=(100, 500, 50))


def measure(conditions: RowConditions) -> RowResult:
    """Every batch, alone and repeated, in the simulator and on the engine."""
    counts = conditions.sized(smoke=(1, 2), short=(1, 2, 4, 8, 16), full=(1, 2, 4, 8, 16, 32))
    log_normal = UnequalBatch(
        name="8 log-normal",
        outputs=tuple(log_normal_lengths(8, 0.8, Random(conditions.seed), most=CONTEXT_TOKENS - PROMPT_TOKENS)),
    )
    batches = (SEVEN_AND_ONE, THREE, OTHER_THREE, *(() if conditions.form == "smoke" else (log_normal,)))
    simulated = {
        batch.name: [_compared(batch, count, _simulated(batch, count)) for count in counts] for batch in batches
    }
    model = load_model(conditions)
    on_engine = _on_engine(model, conditions)
    return RowResult(
        answers=_answers({name: rows[-1] for name, rows in simulated.items()}, on_engine[0], counts[-1], model.name),
        tables=[
            ResultTable(
                title="Simulated: real scheduler, steps of 10 ms",
                kind=FigureKind.SIMULATED,
                columns=COLUMNS,
                rows=[row for rows in simulated.values() for row in rows],
            ),
            ResultTable(
                title=f"On the engine: {model.name}",
                kind=FigureKind.MEASURED,
                columns=COLUMNS,
                rows=on_engine,
            ),
        ],
        plots=[
            ResultPlot(
                title="Gain of continuous batching by the length of the queue (simulated)",
                kind=FigureKind.SIMULATED,
                x_label="batches in the queue",
                y_label="gain",
                lines={name: [(int(row[2]), float(row[5])) for row in rows] for name, rows in simulated.items()},
            )
        ],
        notes=[
            "Log-normal outputs have a median of 847 tokens and sigma 0.8.",
            "One batch alone gains nothing: no request waits that could take a freed row.",
            "On the engine a step of few rows is shorter than one of many: static batching loses less than its bound.",
        ],
    )


def _simulated(batch: UnequalBatch, num_batches: int) -> dict[str, DrivenRun]:
    rows = len(batch.outputs)
    return {
        name: run_virtual(
            VirtualEngine(scheduler=SchedulerConfig(max_num_seqs=rows, baseline=baseline), costs=TEN_MS_STEPS),
            batch.asks(num_batches),
        )
        for name, baseline in BATCHINGS.items()
    }


def _on_engine(model: LoadedModel, conditions: RowConditions) -> list[tuple[str | int | float, ...]]:
    """The first batch, with outputs scaled down where seconds count."""
    share, count = conditions.sized(smoke=(0.1, 2), short=(1.0, 6), full=(1.0, 8))
    batch = UnequalBatch(name=SEVEN_AND_ONE.name, outputs=tuple(int(n * share) for n in SEVEN_AND_ONE.outputs))
    return [
        _compared(batch, each, _run_engine(model, batch, each, conditions.seed)) for each in dict.fromkeys((count, 1))
    ]


def _run_engine(model: LoadedModel, batch: UnequalBatch, num_batches: int, seed: int) -> dict[str, DrivenRun]:
    rows = len(batch.outputs)
    return {
        name: model.run(SchedulerConfig(max_num_seqs=rows, baseline=baseline), batch.asks(num_batches), seed=seed)
        for name, baseline in BATCHINGS.items()
    }


def _compared(batch: UnequalBatch, num_batches: int, runs: dict[str, DrivenRun]) -> tuple[str | int | float, ...]:
    static, continuous = (runs[name].tokens_per_s for name in BATCHINGS)
    gain = continuous / static
    return (
        batch.name, len(batch.outputs), num_batches, static, continuous, gain, batch.most_gain, gain / batch.most_gain,
    )  # fmt: skip


def _answers(
    simulated: dict[str, tuple[str | int | float, ...]],
    on_engine: Sequence[str | int | float],
    num_batches: int,
    model: str,
) -> list[ClaimAnswer]:
    seven, how = simulated[SEVEN_AND_ONE.name], f"{num_batches} such batches in the queue, steps of 10 ms"
    inputs = {"rows": 8, "longest": 500, "tokens": 850}
    bounds = {batch.name: BOUND(rows=len(batch.outputs), longest=max(batch.outputs), tokens=sum(batch.outputs))
              for batch in (THREE, OTHER_THREE)}  # fmt: skip

    def own(name: str, value: str | int | float) -> OwnFigure:
        return OwnFigure(name=name, value=float(value), kind=FigureKind.SIMULATED, how=how)

    return [
        ClaimAnswer(
            claim=exactly("3.6", "7 x 50 and 1 x 500 tokens at 10 ms: 170 tokens/s static", 170, "tokens/s"),
            recomputed=STATIC(tokens=850, longest=500, step_s=0.010),
            own=own("static_tokens_per_s", seven[3]),
        ),
        ClaimAnswer(
            claim=exactly("3.6", "the same, 800 tokens/s continuous", 800, "tokens/s"),
            recomputed=CONTINUOUS(rows=8, step_s=0.010),
            own=own("continuous_tokens_per_s", seven[4]),
        ),
        ClaimAnswer(
            claim=exactly("3.6", "the same, 4.7 times as much", 4.7, "x"),
            recomputed=BOUND(**inputs),
            is_bound=True,
            own=own("gain", seven[5]),
        ),
        ClaimAnswer(
            claim=exactly("3.6", "the same, on the engine", 4.7, "x"),
            recomputed=BOUND(**inputs),
            is_bound=True,
            own=OwnFigure(
                name="gain",
                value=float(on_engine[5]),
                kind=FigureKind.MEASURED,
                how=f"{model}, {on_engine[2]} batches in the queue",
            ),
        ),
        ClaimAnswer(
            claim=between("1.6", "outputs 500, 10, 200: 2-3x", 2, 3, "x"),
            recomputed=bounds[THREE.name],
            is_bound=True,
            own=own("gain", simulated[THREE.name][5]),
        ),
        ClaimAnswer(
            claim=between("4.10", "outputs 100, 500, 50: 3-5x", 3, 5, "x"),
            recomputed=bounds[OTHER_THREE.name],
            is_bound=True,
            own=own("gain", simulated[OTHER_THREE.name][5]),
        ),
    ]
