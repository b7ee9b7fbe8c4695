"""Decode speed by the rows of a batch, and its knee: the last batch whose doubling still gave half as much again."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping

from stratos.calculators.formula import Formula
from stratos.engine.settings import SchedulerConfig
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.driving import DrivenRun, percent_point
from stratos.reproduce.load.loaded import load_model
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind
from stratos.reproduce.record.claim import exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult

BATCHES = (1, 2, 4, 8, 16, 32)
PROMPT_TOKENS = 64
KNEE_GAIN = 1.5
STEP = Formula("tokens_per_s", "batch * bandwidth_gb_s / (weights_gb + batch * request_gb)")


def measure(conditions: RowConditions) -> RowResult:
    """All batches."""
    batches, num_output, repeats = conditions.sized(smoke=((1, 4), 8, 1), short=(BATCHES, 64, 3), full=(BATCHES, 64, 5))
    model = load_model(conditions)
    runs = {
        batch: [
            model.run(SchedulerConfig(max_num_seqs=batch), _asks(batch, num_output), seed=n) for n in range(repeats)
        ]
        for batch in batches
    }
    speeds = {batch: statistics.median(_decode_tokens_per_s(run) for run in found) for batch, found in runs.items()}
    gaps_ms = {
        batch: [
            1e3 * percent_point(sorted(gap for run in found for gap in run.gaps_s()), percent) for percent in (50, 99)
        ]
        for batch, found in runs.items()
    }
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=exactly("3.11", "A100, 7B in 4 bits, 4 K, batch of 16: 5,000 tokens/s", 5000, "tokens/s"),
                recomputed=STEP(batch=16, bandwidth_gb_s=2039, weights_gb=3.5, request_gb=2.15),
                is_bound=True,
            )
        ],
        tables=[
            ResultTable(
                title=f"Decoding after prompts of {PROMPT_TOKENS} tokens: {model.name}", kind=FigureKind.MEASURED,
                columns=("rows", "tokens_per_s", "against_one", "itl_p50_ms", "itl_p99_ms"),
                rows=[(batch, speed, speed / speeds[batches[0]], *gaps_ms[batch]) for batch, speed in speeds.items()],
            )
        ],
        plots=[
            ResultPlot(
                title="Decode speed by batch", kind=FigureKind.MEASURED, x_label="rows", y_label="tokens/s",
                lines={"all rows": list(speeds.items())},
            )
        ],
        notes=[_knee_note(speeds)],
    )  # fmt: skip


def knee(speeds: Mapping[int, float]) -> int:
    """The first batch whose next one gives less than ``KNEE_GAIN`` times the speed; the last one where all do."""
    batches = list(speeds)
    for batch, following in itertools.pairwise(batches):
        if speeds[following] < KNEE_GAIN * speeds[batch]:
            return batch
    return batches[-1]


def _knee_note(speeds: Mapping[int, float]) -> str:
    rows = knee(speeds)
    if rows == max(speeds):
        return f"Up to {rows} rows, each doubling gives {KNEE_GAIN:g} times the speed or more: there is no knee."
    return f"The knee is at {rows} rows: more give less than {KNEE_GAIN:g} times the speed."


def _asks(batch: int, num_output: int) -> list[LoadAsk]:
    return [LoadAsk(num_prompt_tokens=PROMPT_TOKENS, num_output_tokens=num_output)] * batch


def _decode_tokens_per_s(run: DrivenRun) -> float:
    """Tokens after the moment when all rows had their first one, over the time since."""
    began_s = max(outcome.token_times_s[0] for outcome in run.outcomes)
    later = sum(time_s > began_s for outcome in run.outcomes for time_s in outcome.token_times_s)
    return later / (run.ended_s - began_s)
