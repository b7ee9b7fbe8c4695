"""A prompt of 2,048 tokens among running streams: the longest gap between their tokens, and the prompt's own wait.

In one step the whole prompt stands between two tokens of every stream; in chunks it shares each step with them, and
its own first token comes later.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from stratos.engine.settings import SchedulerConfig
from stratos.engine.switches import Baselines, SchedulerSwitches
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.driving import DrivenRun
from stratos.reproduce.load.loaded import LoadedModel, load_model
from stratos.reproduce.load.virtual import VirtualEngine, run_virtual
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_most
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import Cell, ResultTable, RowResult
from stratos.sim.runner import StepCosts

NUM_STREAMS, STREAM_PROMPT_TOKENS, FIRST_TOKENS, ARRIVAL_S = 4, 32, 12, 0.3
PROMPT_TOKENS = 2048
WHOLE = "in one step"
ARMS: Mapping[str, SchedulerConfig] = {
    "prefill first": SchedulerConfig(baseline=Baselines(scheduling="prefill-first")),
    WHOLE: SchedulerConfig(switches=SchedulerSwitches(chunked_prefill=False)),
    "chunks of 512": SchedulerConfig(max_num_batched_tokens=512),
    "chunks of 128": SchedulerConfig(max_num_batched_tokens=128),
}
JUDGED = "chunks of 128"
COLUMNS = ("prompt", "longest_gap_ms", "against_one_step", "prompt_ttft_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptArrival:
    """One run."""

    longest_gap_ms: float
    """Between tokens of a stream, from the prompt's arrival to its first token."""
    ttft_ms: float


def measure(conditions: RowConditions) -> RowResult:
    """All arms, simulated and on this machine."""
    prompt, outputs, repeats = conditions.sized(
        smoke=(256, 60, 1), short=(PROMPT_TOKENS, 600, 3), full=(PROMPT_TOKENS, 300, 3)
    )
    model = load_model(conditions)
    virtual = {arm: VirtualEngine(scheduler=scheduler, costs=StepCosts()) for arm, scheduler in ARMS.items()}
    simulated = {
        arm: _arrival(run_virtual(engine, _asks(prompt, outputs, ARRIVAL_S))) for arm, engine in virtual.items()
    }
    asks = _asks(prompt, outputs, _arrival_here_s(model, conditions.seed))
    measured = {
        arm: _median([_arrival(model.run(scheduler, asks, seed=number)) for number in range(repeats)])
        for arm, scheduler in ARMS.items()
    }
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=at_most("2.4", "TPOT below 40 ms, here also while a long prompt arrives", 40, "ms"),
                own=OwnFigure(
                    name="longest_gap_ms", value=found[JUDGED].longest_gap_ms, kind=kind, how=f"{JUDGED}, {on}"
                ),
            )
            for found, kind, on in (
                (simulated, FigureKind.SIMULATED, "an 8B model in 16 bits on a 24 GB card"),
                (measured, FigureKind.MEASURED, model.name),
            )
        ],
        tables=[
            ResultTable(
                title=f"{prompt} tokens arrive among {NUM_STREAMS} streams, simulated", kind=FigureKind.SIMULATED,
                columns=COLUMNS, rows=_rows(simulated),
            ),
            ResultTable(
                title=f"The same on this machine: {model.name}", kind=FigureKind.MEASURED, columns=COLUMNS,
                rows=_rows(measured),
            ),
        ],
    )  # fmt: skip


def _asks(prompt: int, outputs: int, arrival_s: float) -> list[LoadAsk]:
    return [
        *_streams(outputs),
        LoadAsk(num_prompt_tokens=prompt, num_output_tokens=1, arrival_s=arrival_s),
    ]


def _streams(outputs: int) -> list[LoadAsk]:
    return [LoadAsk(num_prompt_tokens=STREAM_PROMPT_TOKENS, num_output_tokens=outputs)] * NUM_STREAMS


def _arrival_here_s(model: LoadedModel, seed: int) -> float:
    """Time in which streams alone emit some tokens here: then they run, and have most of their tokens before them."""
    return model.run(SchedulerConfig(), _streams(FIRST_TOKENS), seed=seed).duration_s


def _rows(found: Mapping[str, PromptArrival]) -> list[tuple[Cell, ...]]:
    whole = found[WHOLE].longest_gap_ms
    return [(arm, one.longest_gap_ms, one.longest_gap_ms / whole, one.ttft_ms) for arm, one in found.items()]


def _arrival(run: DrivenRun) -> PromptArrival:
    *streams, prompt = run.outcomes
    begin_s, end_s = prompt.arrived_s, prompt.token_times_s[0]
    gaps_s = [
        later - earlier
        for stream in streams
        for earlier, later in itertools.pairwise(stream.token_times_s)
        if later > begin_s and earlier < end_s
    ]
    if not gaps_s:  # a machine that suddenly is many times as fast: the streams ended before the prompt came
        gaps_s = [max(gap_s for stream in streams for gap_s in stream.gaps_s)]
    return PromptArrival(longest_gap_ms=1e3 * max(gaps_s), ttft_ms=1e3 * prompt.ttft_s)


def _median(runs: list[PromptArrival]) -> PromptArrival:
    return PromptArrival(
        longest_gap_ms=statistics.median(run.longest_gap_ms for run in runs),
        ttft_ms=statistics.median(run.ttft_ms for run in runs),
    )
