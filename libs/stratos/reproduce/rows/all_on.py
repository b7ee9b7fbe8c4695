"""Four optimisations, all off, each on alone, all on: throughput, latency, concurrency, memory and bandwidth used.

    off                                        on
    paging       a slot of the whole context   blocks
    batching     static                        continuous
    sampling     a sort of all logits per row  the engine's sampler
    chunks       a prompt in one step          cut to the steps' token budget

Lengths have the proportions of the published example, a median of 847 in a context of 4,096: here of 212 in 1,024, and
a pool of four contexts.  Throughput and memory are of a queue that never ends, latencies of arrivals at half the rate
that the engine with all on can serve: the same arrivals for every arm.

A static batch takes no prompt between two tokens, so its gaps are short and its waits are in TTFT.  What chunks do for
the gaps shows against all on without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch

from stratos.calculators.formula import Formula
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.results import EngineStatus
from stratos.engine.sampling.sampler import Sampler
from stratos.engine.settings import SchedulerConfig
from stratos.engine.switches import Baselines, SchedulerSwitches
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.driving import DrivenRun, OnStep, few_notes, percent_point
from stratos.reproduce.load.lengths import log_normal_lengths
from stratos.reproduce.load.loaded import LoadedModel, load_model, token_bytes_of
from stratos.reproduce.load.sorting_sampler import SortingSampler
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_least, at_most, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import Cell, ResultPlot, ResultTable, RowResult

CONTEXT, MEDIAN, SIGMA, SLOTS = 1024, 212, 0.7, 4
PROMPT_SHARE = 0.25
"""Part of a sequence; each eighth request is mostly prompt."""
STREAMS, TOKEN_BUDGET, LOAD_SHARE = 32, 256, 0.5
PARAMS = SamplingParams(temperature=0.8, top_k=40, top_p=0.9)
NUM_POINTS = 40
COPIED_BYTES = 256 << 20
OPTIMISATIONS = ("paging", "batching", "sampling", "chunks")
ALL_OFF, ALL_BUT_CHUNKS, ALL_ON = "all off", "all but chunks", "all on"
ARMS: Mapping[str, frozenset[str]] = {
    ALL_OFF: frozenset(),
    **{f"{name} alone": frozenset({name}) for name in OPTIMISATIONS},
    ALL_BUT_CHUNKS: frozenset(OPTIMISATIONS) - {"chunks"},
    ALL_ON: frozenset(OPTIMISATIONS),
}
COLUMNS = (
    "arm", "tokens_per_s", "running", "live_share", "mbu", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms",
)  # fmt: skip
DECODE = Formula("tokens_per_s", "bandwidth_gb_s / weights_gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """One arm with a queue that never ends."""

    tokens_per_s: float
    requests_per_s: float
    running: float
    live_share: float
    """Tokens held by running sequences, of the pool's."""
    mbu: float
    """Bytes of weights and KV that steps had to read, over the time and this machine's copy rate."""

    def row(self, arm: str, arrived: DrivenRun) -> tuple[Cell, ...]:
        """A row of the table, with the latencies of the arrivals."""
        distributions = (arrived.ttfts_s(), arrived.gaps_s())
        latencies = [1e3 * percent_point(values, percent) for values in distributions for percent in (50, 99)]
        return arm, self.tokens_per_s, self.running, self.live_share, self.mbu, *latencies


def measure(conditions: RowConditions) -> RowResult:
    """All arms: first the queue, then the arrivals."""
    num_requests, part = conditions.sized(smoke=(6, 16), short=(32, 1), full=(32, 1))
    model = load_model(conditions, max_model_len=CONTEXT, kv_pool_bytes=_pool_bytes(conditions))
    copy_rate = _copy_bytes_per_s()
    asks = _asks(num_requests, part, conditions.seed)
    queued = {arm: _queued(model, on, asks, copy_rate, conditions.seed) for arm, on in ARMS.items()}
    rate = LOAD_SHARE * queued[ALL_ON].requests_per_s
    arriving = _arriving(asks, rate, conditions.seed)
    arrived = {arm: _run(model, on, arriving, conditions.seed) for arm, on in ARMS.items()}
    table = {arm: queued[arm].row(arm, arrived[arm]) for arm in ARMS}
    weights = model.runner.info.step_weight_bytes
    return RowResult(
        answers=_answers(table, model.name, copy_rate, weights),
        tables=[
            ResultTable(
                title=f"{num_requests} requests, {model.name}, latencies at {rate:.3g} requests/s",
                kind=FigureKind.MEASURED, columns=COLUMNS, rows=list(table.values()),
            ),
            ResultTable(
                title="Gain over all off", kind=FigureKind.MEASURED, columns=("arm", *COLUMNS[1:]),
                rows=[_gains(row, table[ALL_OFF]) for row in table.values()],
            ),
        ],
        plots=[
            ResultPlot(
                title="Gaps between tokens: share below", kind=FigureKind.MEASURED, x_label="ms", y_label="share",
                is_x_log=True, lines={arm: _shares(arrived[arm].gaps_s()) for arm in (ALL_OFF, ALL_ON)},
            )
        ],
        notes=[
            f"Copies run at {copy_rate / 1e9:.3g} GB/s here; a step reads {weights / 1e6:.4g} MB of weights.",
            *few_notes(num_requests),
        ],
    )  # fmt: skip


def _scheduler(on: frozenset[str]) -> SchedulerConfig:
    """Settings of an arm; the sampler is the runner's."""
    baseline = Baselines(
        kv_allocation="paged" if "paging" in on else "contiguous",
        batching="continuous" if "batching" in on else "static",
    )
    switches = SchedulerSwitches(chunked_prefill="chunks" in on)
    return SchedulerConfig(
        max_num_seqs=STREAMS,
        max_num_batched_tokens=TOKEN_BUDGET,
        kv_watermark=1.0,
        baseline=baseline,
        switches=switches,
    )


def _asks(count: int, part: int, seed: int) -> list[LoadAsk]:
    """Requests whose final lengths are log-normal; ``part`` shortens all of them."""
    rng = Random(seed)
    lengths = log_normal_lengths(count, SIGMA, rng, median=MEDIAN // part, most=CONTEXT // part)
    asks = []
    for number, length in enumerate(lengths):
        prompt = max(1, int(length * (1 - PROMPT_SHARE if number % 8 == 7 else PROMPT_SHARE)))
        asks.append(LoadAsk(num_prompt_tokens=prompt, num_output_tokens=max(2, length - prompt), sampling=PARAMS))
    return asks


def _arriving(asks: Sequence[LoadAsk], rate: float, seed: int) -> list[LoadAsk]:
    rng, at_s, found = Random(seed), 0.0, []
    for ask in asks:
        at_s += rng.expovariate(rate)
        found.append(replace(ask, arrival_s=at_s))
    return found


def _run(
    model: LoadedModel, on: frozenset[str], asks: Sequence[LoadAsk], seed: int, on_step: OnStep | None = None
) -> DrivenRun:
    with model.sampling_by(Sampler if "sampling" in on else SortingSampler):
        return model.run(_scheduler(on), asks, seed=seed, on_step=on_step)


def _queued(
    model: LoadedModel, on: frozenset[str], asks: Sequence[LoadAsk], copy_rate: float, seed: int
) -> QueueFigures:
    """All requests at once: means over the steps after which some wait (over all if none does)."""
    info = model.runner.info
    steps: list[tuple[float, EngineStatus]] = []
    waiting: list[tuple[float, EngineStatus]] = []
    read_bytes = 0

    def note(seconds: float, status: EngineStatus) -> None:
        nonlocal read_bytes
        read_bytes += info.step_weight_bytes + status.num_kv_tokens * info.geometry.token_bytes
        steps.append((seconds, status))
        if status.num_waiting:
            waiting.append((seconds, status))

    run = _run(model, on, asks, seed, note)
    counted = waiting or steps
    total_s = sum(seconds for seconds, _ in counted)

    def mean(value: Callable[[EngineStatus], float]) -> float:
        return sum(seconds * value(status) for seconds, status in counted) / total_s

    return QueueFigures(
        tokens_per_s=run.tokens_per_s,
        requests_per_s=len(asks) / run.duration_s,
        running=mean(lambda status: status.num_running),
        live_share=mean(lambda status: status.num_kv_tokens) / (info.num_blocks * info.geometry.block_size),
        mbu=read_bytes / run.duration_s / copy_rate,
    )


def _pool_bytes(conditions: RowConditions) -> int:
    """KV of so many contexts of the form's model."""
    return SLOTS * CONTEXT * token_bytes_of(conditions)


def _copy_bytes_per_s() -> float:
    """Bytes read and written per second by one thread that copies more than any cache holds; best of five."""
    source, target = (torch.ones(COPIED_BYTES, dtype=torch.uint8) for _ in range(2))
    times = []
    for _ in range(5):
        began_s = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - began_s)
    return 2 * COPIED_BYTES / min(times)


def _gains(row: Sequence[Cell], base: Sequence[Cell]) -> tuple[Cell, ...]:
    """Each figure over that of the base."""
    ratios = [float(one) / float(other) if float(other) else 0.0 for one, other in zip(row[1:], base[1:], strict=True)]
    return (row[0], *ratios)


def _named_gains(table: Mapping[str, tuple[Cell, ...]], base: str) -> dict[str, float]:
    """Gains of all on over another arm, by column."""
    return dict(zip(COLUMNS[1:], map(float, _gains(table[ALL_ON], table[base])[1:]), strict=True))


def _shares(ascending: Sequence[float]) -> list[tuple[float, float]]:
    last = len(ascending) - 1
    places = (number / NUM_POINTS for number in range(NUM_POINTS + 1))
    return [(1e3 * ascending[round(share * last)], share) for share in places]


def _answers(table: Mapping[str, tuple[Cell, ...]], model: str, copy_rate: float, weights: int) -> list[ClaimAnswer]:
    gains = _named_gains(table, ALL_OFF)
    single = copy_rate / 2 / weights  # a copy reads and writes, a step reads
    claims = (
        (at_least("0.6", "340 to 1,200 tokens/s a GPU and more: 3.5x", 3.5, "x"), "tokens_per_s"),
        (at_least("0.6", "20 to 60 requests at once and more: 3x", 3, "x"), "running"),
        (at_least("0.6", "memory efficiency from 21 to 75 % and more: 3.5x", 3.5, "x"), "live_share"),
        (at_most("0.6", "p99 TTFT from 720 to 400 ms: 0.56x", 0.56, "x"), "ttft_p99_ms"),
        (at_most("0.6", "p99 ITL from 62 to 35 ms: 0.56x", 0.56, "x"), "itl_p99_ms"),
    )
    answers = [
        ClaimAnswer(
            claim=claim,
            own=OwnFigure(
                name=f"{name}_ratio",
                value=gains[name],
                kind=FigureKind.MEASURED,
                how=f"all on over all off, {model}",
            ),
        )
        for claim, name in claims
    ]
    return [
        *answers,
        ClaimAnswer(
            claim=claims[-1][0],
            own=OwnFigure(
                name="itl_p99_ms_ratio",
                value=_named_gains(table, ALL_BUT_CHUNKS)["itl_p99_ms"],
                kind=FigureKind.MEASURED,
                how=f"all on over {ALL_BUT_CHUNKS}, {model}",
            ),
        ),
        ClaimAnswer(
            claim=exactly("3.2", "a 7B model in 16 bits at 3.35 TB/s: 238 tokens/s of one stream", 238, "tokens/s"),
            recomputed=DECODE(bandwidth_gb_s=3350, weights_gb=14),
            own=OwnFigure(
                name="bound_of_tokens_per_s",
                value=single,
                kind=FigureKind.MEASURED,
                how=f"no stream ran: the formula with this machine's copy rate, {model}",
            ),
        ),
    ]
