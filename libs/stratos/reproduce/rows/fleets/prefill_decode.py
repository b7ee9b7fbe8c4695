"""Prompts and answers on devices of their own against one pool that does both: the most load that keeps a promise.

Devices are those of the other simulated rows, four of them.  In one pool, a chunk of a prompt stands in the steps of
running streams.  Apart, a prompt is computed whole, its KV crosses a link, and steps have one token of each stream; but
a device that is free cannot help on the other side.  A device takes its requests by turns.

The decode side is an engine whose prompts cost nothing: their KV has come, takes its blocks, and costs a step.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from stratos.engine.settings import SchedulerConfig
from stratos.reproduce.load.asks import AskOutcome, LoadAsk
from stratos.reproduce.load.driving import percent_point
from stratos.reproduce.load.virtual import VirtualEngine, run_virtual
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import between
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import Cell, ResultTable, RowResult
from stratos.sim.runner import StepCosts

DEVICES, NUM_BLOCKS, STREAMS = 4, 4096, 32
LEAST_PROMPT, MOST_PROMPT, LEAST_OUTPUT, MOST_OUTPUT = 512, 1536, 64, 192
TOKEN_BYTES, LINK_BYTES_PER_S = 131_072, 12.5e9
"""KV of a token of an 8B model in 16 bits; a link of 100 Gbit/s, used when a prompt is computed, not beside it."""
TTFT_S, TPOT_S, KEPT_SHARE = 1.0, 0.040, 0.9
"""The promise: first token, mean time between the others, and the share of the requests that must have both."""
LEAST_RATE, MOST_RATE = 4.0, 20.0
"""Ends of the range that is searched; an arrangement that is borne at the upper one may bear more."""
HERE = StepCosts()
COMPUTED_ELSEWHERE = replace(HERE, prompt_token_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """Times of one request."""

    ttft_s: float
    tpot_s: float

    @property
    def is_kept(self) -> bool:
        return self.ttft_s <= TTFT_S and self.tpot_s <= TPOT_S


Serve = Callable[[Sequence[LoadAsk]], list[ServedRequest]]


def one_pool(token_budget: int) -> Serve:
    """All devices do both, in steps of so many tokens."""
    scheduler = SchedulerConfig(max_num_seqs=STREAMS, max_num_batched_tokens=token_budget)

    def serve(asks: Sequence[LoadAsk]) -> list[ServedRequest]:
        found = _by_turns(VirtualEngine(num_blocks=NUM_BLOCKS, scheduler=scheduler, costs=HERE), asks, DEVICES)
        return [_served(one.arrived_s, one.token_times_s) for one in found]

    return serve


def apart(num_prefill: int) -> Serve:
    """So many devices compute prompts, the others decode."""
    prefill = VirtualEngine(
        num_blocks=NUM_BLOCKS, costs=HERE,
        scheduler=SchedulerConfig(max_num_batched_tokens=MOST_PROMPT, step_time_budget_ms=0.0),
    )  # fmt: skip
    decode = VirtualEngine(
        num_blocks=NUM_BLOCKS, costs=COMPUTED_ELSEWHERE,
        scheduler=SchedulerConfig(
            max_num_seqs=STREAMS, max_num_batched_tokens=STREAMS * MOST_PROMPT, step_time_budget_ms=0.0
        ),
    )  # fmt: skip

    def serve(asks: Sequence[LoadAsk]) -> list[ServedRequest]:
        prompts = _by_turns(prefill, [replace(ask, num_output_tokens=1) for ask in asks], num_prefill)
        come_s = [
            one.token_times_s[0] + ask.num_prompt_tokens * TOKEN_BYTES / LINK_BYTES_PER_S
            for one, ask in zip(prompts, asks, strict=True)
        ]
        order = sorted(range(len(asks)), key=come_s.__getitem__)
        handed = [replace(asks[number], arrival_s=come_s[number]) for number in order]
        answers = dict(zip(order, _by_turns(decode, handed, DEVICES - num_prefill), strict=True))
        return [_served(one.arrived_s, answers[number].token_times_s) for number, one in enumerate(prompts)]

    return serve


ARMS: Mapping[str, Serve] = {
    "one pool, chunks of 512": one_pool(512),
    "one pool, chunks of 128": one_pool(128),
    "1 for prompts, 3 for answers": apart(1),
    "2 for prompts, 2 for answers": apart(2),
    "3 for prompts, 1 for answers": apart(3),
}
POOLS = tuple(arm for arm in ARMS if arm.startswith("one pool"))


def measure(conditions: RowConditions) -> RowResult:
    """The most load of each arrangement, and all of them at the best pool's."""
    num_requests, rounds = conditions.sized(smoke=(8, 1), short=(120, 6), full=(480, 8))
    rates = {arm: most_rate(serve, num_requests, rounds, conditions.seed) for arm, serve in ARMS.items()}
    base = max(rates[arm] for arm in POOLS) or LEAST_RATE
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=between("1.7", "prompts and answers apart: 20-40 % more", 0.2, 0.4), own=own_gain(rates)
            )
        ],
        tables=[
            ResultTable(
                title=f"{DEVICES} devices, an 8B model on 24 GB cards, simulated: the most load that keeps the promise",
                kind=FigureKind.SIMULATED, columns=("arrangement", "requests_per_s", "against_best_pool"),
                rows=[(arm, rate, rate / base) for arm, rate in rates.items()],
            ),
            ResultTable(
                title=f"All at {base:.4g} requests/s, the best pool's", kind=FigureKind.SIMULATED,
                columns=("arrangement", "kept_share", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms"),
                rows=[
                    (arm, *_figures(serve(_asks(num_requests, base, conditions.seed)))) for arm, serve in ARMS.items()
                ],
            ),
        ],
        notes=[
            f"The promise: first token within {TTFT_S:g} s, {1e3 * TPOT_S:g} ms between the others, for "
            f"{KEPT_SHARE:.0%} of {num_requests} requests; prompts of {LEAST_PROMPT} to {MOST_PROMPT} tokens, answers "
            f"of {LEAST_OUTPUT} to {MOST_OUTPUT}.",
            f"Rates from {LEAST_RATE:g} to {MOST_RATE:g} requests/s were tried; 0 is not even the least of them.",
        ],
    )  # fmt: skip


def own_gain(rates: Mapping[str, float]) -> OwnFigure | None:
    """Gain of the best arrangement apart over the best pool; ``None`` where one of them lies at an end of the range."""
    best_pool = max(POOLS, key=rates.__getitem__)
    best_apart = max((arm for arm in rates if arm not in POOLS), key=rates.__getitem__)
    if not all(0 < rates[arm] < MOST_RATE for arm in (best_pool, best_apart)):
        return None
    return OwnFigure(
        name="gain", value=rates[best_apart] / rates[best_pool] - 1, kind=FigureKind.SIMULATED,
        how=f"{best_apart} against {best_pool}, load at which {KEPT_SHARE:.0%} keep the promise",
    )  # fmt: skip


def most_rate(serve: Serve, num_requests: int, rounds: int, seed: int) -> float:
    """The rate up to which the promise holds, by halving a range whose ends have a constant ratio.

    Returns:
        0 where it does not hold at the least rate, and the most of the range where it holds there.
    """

    def is_kept(rate: float) -> bool:
        return _kept_share(serve(_asks(num_requests, rate, seed))) >= KEPT_SHARE

    low, high = LEAST_RATE, MOST_RATE
    if is_kept(high):
        return high
    if not is_kept(low):
        return 0.0
    for _ in range(rounds):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_kept(middle) else (low, middle)
    return low


def _asks(count: int, rate: float, seed: int) -> list[LoadAsk]:
    """Poisson arrivals: the same requests at every rate, only closer together."""
    rng, at_s, asks = Random(seed), 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(1.0) / rate
        asks.append(
            LoadAsk(
                num_prompt_tokens=rng.randint(LEAST_PROMPT, MOST_PROMPT),
                num_output_tokens=rng.randint(LEAST_OUTPUT, MOST_OUTPUT),
                arrival_s=at_s,
            )
        )
    return asks


def _by_turns(config: VirtualEngine, asks: Sequence[LoadAsk], num_devices: int) -> list[AskOutcome]:
    """Each device takes every n-th request; outcomes in the order of the asks."""
    parts = [run_virtual(config, asks[first::num_devices]).outcomes for first in range(num_devices)]
    numbered = (
        [(first + num_devices * place, one) for place, one in enumerate(part)] for first, part in enumerate(parts)
    )
    return [one for _, one in heapq.merge(*numbered, key=lambda pair: pair[0])]


def _served(arrived_s: float, token_times_s: Sequence[float]) -> ServedRequest:
    first_s, last_s = token_times_s[0], token_times_s[-1]
    return ServedRequest(ttft_s=first_s - arrived_s, tpot_s=(last_s - first_s) / max(1, len(token_times_s) - 1))


def _kept_share(served: Sequence[ServedRequest]) -> float:
    return sum(one.is_kept for one in served) / len(served)


def _figures(served: Sequence[ServedRequest]) -> list[Cell]:
    times = sorted(one.ttft_s for one in served), sorted(one.tpot_s for one in served)
    return [_kept_share(served), *(1e3 * percent_point(values, percent) for values in times for percent in (50, 99))]
