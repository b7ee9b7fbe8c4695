"""Requests of unequal length in the KV pool of one published example: a 13B model in 16 bits on 80 GB.

The example reserves 4,096 tokens for each request and has a median of 847.  How wide the lengths spread is not said, so
four widths are simulated; the real scheduler and block manager run, steps take what reading weights and KV takes on the
example's device.  Fifty requests come at once, as the example has it.  They fit into a paged pool, so a longer queue
shows what a pool holds that never runs empty.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from stratos.calculators.formula import Formula
from stratos.calculators.memory.kv import KvAsk, estimate_kv
from stratos.calculators.models.known import find_shape
from stratos.engine.settings import SchedulerConfig
from stratos.engine.switches import Baselines
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.kv_pool import PoolUse, measure_pool
from stratos.reproduce.load.lengths import CONTEXT_TOKENS, MEDIAN_TOKENS, log_normal_lengths, mean_of_log_normal
from stratos.reproduce.load.virtual import BLOCK_SIZE, VirtualEngine
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_least, at_most, between, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult
from stratos.sim.runner import StepCosts

MEMORY_BYTES, WEIGHT_BYTES = 80e9, 26e9
SIGMAS = (0.6, 0.8, 0.9, 1.0)
PROMPT_TOKENS = 128
COSTS = StepCosts(step_s=0.0128, prompt_token_s=8.2e-5, sequence_s=4e-4)
"""26 GB of weights, and about 1,000 tokens of KV for a row, at 2.04 TB/s; prompts at 312 TFLOP/s."""
SLOTS, PAGED, MARKED = "slots of 4,096", "paged, mark 100 %", "paged, mark 90 %"
ALLOCATIONS = {
    SLOTS: SchedulerConfig(kv_watermark=1.0, baseline=Baselines(kv_allocation="contiguous")),
    PAGED: SchedulerConfig(kv_watermark=1.0),
    MARKED: SchedulerConfig(kv_watermark=0.90),
}
HELD = Formula("requests", "floor((memory_gb - weights_gb) / request_gb)")
WASTE = Formula("waste_share", "1 - mean_tokens / context_tokens")
GAIN = Formula("concurrency_gain", "paged_requests / slot_requests")
COLUMNS = (
    "requests", "sigma", "KV", "running", "most_running", "live", "waste", "live_gb", "waste_gb", "computed_again",
)  # fmt: skip


def measure(conditions: RowConditions) -> RowResult:
    """Every width, with 50 requests and with a long queue."""
    sigmas = conditions.sized(smoke=(0.6,), short=SIGMAS, full=SIGMAS)
    part = conditions.sized(smoke=8, short=1, full=1)  # of all lengths, and its square of the pool
    queue = conditions.sized(smoke=40, short=200, full=600)
    counts = conditions.sized(smoke=(queue,), short=(50, queue), full=(50, queue))
    found = {
        (count, sigma, name): _simulated(count, sigma, name, part, conditions.seed)
        for count in counts
        for sigma in sigmas
        for name in ALLOCATIONS
    }
    long = {key[1:]: use for key, use in found.items() if key[0] == queue}
    return RowResult(
        answers=_answers(long, sigmas[0]),
        tables=[
            ResultTable(
                title="Means while requests wait; shares of the pool (0: none ever waited)", kind=FigureKind.SIMULATED,
                columns=COLUMNS, rows=[_table_row(*key, use) for key, use in found.items()],
            ),
            ResultTable(
                title="A median is not a mean: log-normal, median 847, cut at 4,096", kind=FigureKind.CALCULATED,
                columns=("sigma", "mean_tokens", "waste_of_a_slot"),
                rows=[(sigma, mean_of_log_normal(sigma), _mean_waste(sigma)) for sigma in SIGMAS],
            ),
        ],
        plots=[
            ResultPlot(
                title=f"Requests at once, queue of {queue} (simulated)", kind=FigureKind.SIMULATED,
                x_label="sigma of the lengths' logarithm", y_label="requests at once",
                lines={name: [(sigma, long[sigma, name].running) for sigma in sigmas] for name in ALLOCATIONS},
            )
        ],
        notes=[
            _memory_note(),
            "A request has its whole KV only when it ends: until then its slot is emptier than final lengths say.",
        ],
    )  # fmt: skip


def token_bytes() -> int:
    """KV of one token of the example's model."""
    return int(estimate_kv(find_shape("llama-2-13b"), KvAsk())["token_bytes"])


def num_blocks() -> int:
    """Blocks of the pool that the example has: all memory that the weights leave."""
    return int((MEMORY_BYTES - WEIGHT_BYTES) / token_bytes()) // BLOCK_SIZE


def _simulated(count: int, sigma: float, name: str, part: int, seed: int) -> PoolUse:
    context, prompt = CONTEXT_TOKENS // part, PROMPT_TOKENS // part
    lengths = log_normal_lengths(count, sigma, Random(seed), median=MEDIAN_TOKENS // part, most=context)
    asks = [LoadAsk(num_prompt_tokens=prompt, num_output_tokens=max(1, length - prompt)) for length in lengths]
    scheduler = replace(ALLOCATIONS[name], max_num_seqs=256, max_num_batched_tokens=2048, step_time_budget_ms=0.0)
    blocks = num_blocks() // part**2
    config = VirtualEngine(num_blocks=blocks, max_model_len=context, scheduler=scheduler, costs=COSTS)
    return measure_pool(config, asks, seed=seed)


def _table_row(count: int, sigma: float, name: str, use: PoolUse) -> tuple[str | int | float, ...]:
    pool_gb = num_blocks() * BLOCK_SIZE * token_bytes() / 1e9
    return (
        count, sigma, name, use.running, use.most_running, use.live, use.waste, use.live * pool_gb, use.waste * pool_gb,
        use.recomputed,
    )  # fmt: skip


def _mean_waste(sigma: float) -> float:
    return float(WASTE.of(mean_tokens=mean_of_log_normal(sigma), context_tokens=CONTEXT_TOKENS))


def _answers(found: dict[tuple[float, str], PoolUse], sigma: float) -> list[ClaimAnswer]:
    slots, paged = found[sigma, SLOTS], found[sigma, PAGED]

    def own(name: str, value: float) -> OwnFigure | None:
        if not (slots.backlog_s and paged.backlog_s):
            return None  # no request ever waited
        return OwnFigure(name=name, value=value, kind=FigureKind.SIMULATED, how=f"sigma {sigma}, while requests wait")

    gain = GAIN.of(paged_requests=paged.running, slot_requests=slots.running) if slots.running else 0.0
    return [
        ClaimAnswer(
            claim=exactly("0.2", "80 GB hold 20 requests beside 26 GB of weights", 20, "requests"),
            recomputed=HELD(memory_gb=80, weights_gb=26, request_gb=3.36),
            own=own("running_in_slots", slots.running),
        ),
        ClaimAnswer(
            claim=exactly("0.3", "79.3 % of a slot is wasted", 0.793),
            recomputed=WASTE(mean_tokens=MEDIAN_TOKENS, context_tokens=CONTEXT_TOKENS),
            own=own("waste_of_slots", slots.waste),
        ),
        ClaimAnswer(
            claim=at_least("0.6", "60 and more requests at once with paging", 60, "requests"),
            own=own("running_paged", paged.running),
        ),
        ClaimAnswer(
            claim=at_least("0.6", "concurrency from 20 to 60 and more: 3x", 3, "x"),
            own=own("concurrency_gain", float(gain)),
        ),
        ClaimAnswer(
            claim=at_least("0.6", "memory efficiency of 75 % and more", 0.75),
            own=own("live_share", paged.live),
        ),
        ClaimAnswer(
            claim=at_most("1.5", "paging wastes less than 4 %", 0.04),
            own=own("waste_of_paged", paged.waste),
        ),
        ClaimAnswer(
            claim=between("1.5", "without paging 60-80 % are wasted", 0.6, 0.8),
            own=own("waste_of_slots", slots.waste),
        ),
        ClaimAnswer(
            claim=between("1.5", "8 to 32-48 users with paging: 4-6x", 4, 6, "x"),
            own=own("concurrency_gain", float(gain)),
        ),
        ClaimAnswer(
            claim=between("1.5", "800 to 2,400-3,200 tokens/s with paging: 3-4x", 3, 4, "x"),
            own=own("tokens_per_s_gain", slots.total_s / paged.total_s),
        ),
    ]


def _memory_note() -> str:
    pool_tokens = num_blocks() * BLOCK_SIZE
    return (
        f"A token's KV is {token_bytes():,} bytes, so the pool of {(MEMORY_BYTES - WEIGHT_BYTES) / 1e9:g} GB has "
        f"{pool_tokens:,} tokens: {pool_tokens // CONTEXT_TOKENS} slots. No room for a run-time is taken off, as in "
        "the example."
    )
