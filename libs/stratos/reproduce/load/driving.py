"""The loop that drives an engine with a load, in virtual time or in real time, and what it found.

Arrivals are an open load: each request is added at its own time, however far the engine is behind, and its latency
counts from there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stratos.common.clock import Clock
from stratos.engine.contract.results import EngineStatus, StepResult
from stratos.engine.core import EngineCore
from stratos.reproduce.load.asks import AskOutcome, LoadAsk

OnStep = Callable[[float, EngineStatus], None]


@dataclass(slots=True, kw_only=True)
class DrivenRun:
    """Outcomes in the order of the asks, and counts of the run."""

    began_s: float
    ended_s: float = 0.0
    outcomes: list[AskOutcome] = field(default_factory=list)
    num_steps: int = 0
    num_computed: int = 0
    """Tokens that steps computed, those of preempted sequences again."""

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.began_s

    @property
    def num_output_tokens(self) -> int:
        return sum(len(outcome.token_times_s) for outcome in self.outcomes)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens."""
        return self.num_output_tokens / self.duration_s

    def ttfts_s(self) -> list[float]:
        """Ascending."""
        return sorted(outcome.ttft_s for outcome in self.outcomes)

    def gaps_s(self) -> list[float]:
        """Ascending."""
        return sorted(gap_s for outcome in self.outcomes for gap_s in outcome.gaps_s)

    def latencies_s(self) -> list[float]:
        """End to end, ascending."""
        return sorted(outcome.ended_s - outcome.arrived_s for outcome in self.outcomes)


def percent_point(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank of ascending values; 0 where there is none."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else 0.0


def few_notes(count: int) -> list[str]:
    """A remark on p99 of so few requests that it is the slowest of all."""
    return [f"p99 of TTFT of {count} requests is that of the slowest one."] if count < 100 else []


def drive(
    engine: EngineCore,
    asks: Sequence[LoadAsk],
    clock: Clock,
    wait: Callable[[float], None],
    *,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> DrivenRun:
    """Run a load to its end.

    Args:
        engine: without other work.
        asks: in the order of their arrivals.
        clock: of the engine.
        wait: lets that many seconds of the clock pass.
        seed: of prompts and samples.
        on_step: called after each step with its duration and the engine's status.
    """
    run = DrivenRun(began_s=clock.now())
    run.outcomes = [AskOutcome(arrived_s=run.began_s + ask.arrival_s) for ask in asks]
    vocab_size = engine.info.vocab_size
    waiting = deque(enumerate(asks))
    while waiting or engine.has_work:
        while waiting and run.began_s + waiting[0][1].arrival_s <= clock.now():
            number, ask = waiting.popleft()
            engine.add(ask.as_request(number, run.began_s, vocab_size, seed))
        before_s = clock.now()
        result = engine.step() if engine.has_work else None
        if result is not None and not result.is_idle:
            _note(run, result, clock.now())
            if on_step is not None:
                on_step(clock.now() - before_s, engine.status())
        elif waiting:
            wait(max(0.0, run.began_s + waiting[0][1].arrival_s - clock.now()))
        else:
            assert result is None, "requests wait, and nothing can run"
    run.ended_s = clock.now()
    return run


def _note(run: DrivenRun, result: StepResult, now_s: float) -> None:
    if result.errors:
        raise RuntimeError(f"a request failed: {next(iter(result.errors.values()))}")
    run.num_steps += 1
    run.num_computed += result.shares.num_tokens
    for output in result.outputs:
        outcome = run.outcomes[int(output.key.request_id[1:])]
        outcome.token_times_s += [now_s] * len(output.token_ids)
        outcome.token_ids += output.token_ids
        outcome.logprobs += [position.sampled.logprob for position in output.logprobs]
