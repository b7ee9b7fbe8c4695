"""Promised p99s over a day of windows: the windows that miss, and what is credited for them, all off and all on.

A window is judged, and its credit computed, by the rules of the platform's ledger: it misses where more than one time
in a hundred is beyond the promise, and gives back a part of the charge of its requests.  A day is 24 windows whose load
goes up and down; windows at the load of the peak or near it are its peak windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from stratos.core.ledger.pricing import Amounts, TokenCounts, price_request
from stratos.core.ledger.windows import PER_MICRO_UNIT, PromiseWindow, stake_of
from stratos.core.tenancy.plan import Plan
from stratos.core.tenancy.prices import DEFAULT_SIZE, Discounts, Price
from stratos.engine.settings import SchedulerConfig
from stratos.engine.switches import Baselines, SchedulerSwitches
from stratos.reproduce.load.asks import AskOutcome, LoadAsk
from stratos.reproduce.load.virtual import VirtualEngine, run_virtual
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_most, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import Cell, ResultPlot, ResultTable, RowResult
from stratos.sim.runner import StepCosts

PLAN = Plan(
    name="reproduced",
    ttft_p99_ms=400,
    itl_p99_ms=60,
    prices={DEFAULT_SIZE: Price(prompt=500_000, output=1_500_000)},
    discounts=Discounts(credit_percent=10),
)
WINDOWS, SWING, PEAK_SHARE, PEAK_RATE = 24, 0.8, 0.8, 4.0
"""Windows of a day, swing of its load around the mean, part of the peak from which a window counts as peak, and the
rate at the top in requests per second."""
PROMPT_TOKENS, LEAST_OUTPUT, MOST_OUTPUT, STREAMS = 256, 32, 128, 32
ALL_OFF, ALL_ON = "all off", "all on"
ARMS: Mapping[str, SchedulerConfig] = {
    ALL_OFF: SchedulerConfig(
        max_num_seqs=STREAMS,
        kv_watermark=1.0,
        baseline=Baselines(kv_allocation="contiguous", batching="static"),
        switches=SchedulerSwitches(chunked_prefill=False),
    ),
    ALL_ON: SchedulerConfig(max_num_seqs=STREAMS, max_num_batched_tokens=256),
}
COLUMNS = ("arm", "windows", "missed", "peak_windows", "missed_at_peak", "credit_share_of_charge")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedDay:
    """Windows of a day, in order."""

    rates: list[float]
    windows: list[PromiseWindow]
    charge: int
    """Charge of the requests, in micro-units."""

    @property
    def at_peak(self) -> list[PromiseWindow]:
        """Windows of high load."""
        least = PEAK_SHARE * max(self.rates)
        return [window for rate, window in zip(self.rates, self.windows, strict=True) if rate >= least]

    @property
    def credit_share(self) -> float:
        """Credits over what was charged."""
        return sum(window.credit for window in self.windows) / self.charge


def measure(conditions: RowConditions) -> RowResult:
    """A day of both arms with the same arrivals."""
    window_s, num_windows = conditions.sized(smoke=(4, 4), short=(20, WINDOWS), full=(120, WINDOWS))
    days = {arm: _day(scheduler, window_s, num_windows, conditions.seed) for arm, scheduler in ARMS.items()}
    return RowResult(
        answers=[
            *(
                ClaimAnswer(claim=claim, own=_own("missed_at_peak", _missed_share(days[arm].at_peak), arm))
                for claim, arm in (
                    (exactly("0.8", "before: violations in 12 % of peak windows", 0.12), ALL_OFF),
                    (at_most("0.9", "after: less than 1 %", 0.01), ALL_ON),
                )
            ),
            *(
                ClaimAnswer(claim=claim, own=_own("credit_share_of_charge", days[arm].credit_share, arm))
                for claim, arm in (
                    (exactly("0.8", "before: credits of 38 K of 4.2 M", 38e3 / 4.2e6), ALL_OFF),
                    (at_most("0.9", "after: less than 3 K of 4.2 M", 3e3 / 4.2e6), ALL_ON),
                )
            ),
        ],
        tables=[
            ResultTable(
                title=f"A day of {num_windows} windows of {window_s} s, an 8B model on a 24 GB card, simulated",
                kind=FigureKind.SIMULATED, columns=COLUMNS, rows=[_row(arm, day) for arm, day in days.items()],
            )
        ],
        plots=[
            ResultPlot(
                title="Share of first tokens beyond the promise, by window", kind=FigureKind.SIMULATED,
                x_label="window", y_label="share",
                lines={
                    arm: [(n, one.num_ttft_over / max(1, one.num_ttft)) for n, one in enumerate(day.windows)]
                    for arm, day in days.items()
                },
            )
        ],
        notes=[
            f"The promise: p99 of first tokens {PLAN.ttft_p99_ms} ms, of times between tokens {PLAN.itl_p99_ms} ms; a "
            f"window that misses gives {PLAN.discounts.credit_percent} % back. Peak windows have {PEAK_SHARE:.0%} of "
            f"the highest load, {PEAK_RATE:g} requests/s, or more."
        ],
    )  # fmt: skip


def _own(name: str, value: float, arm: str) -> OwnFigure:
    return OwnFigure(name=name, value=value, kind=FigureKind.SIMULATED, how=f"{arm}, one engine")


def _row(arm: str, day: JudgedDay) -> tuple[Cell, ...]:
    missed, at_peak = sum(window.is_missed for window in day.windows), day.at_peak
    return arm, len(day.windows), missed, len(at_peak), sum(one.is_missed for one in at_peak), day.credit_share


def _missed_share(windows: Sequence[PromiseWindow]) -> float:
    return sum(window.is_missed for window in windows) / len(windows)


def _day(scheduler: SchedulerConfig, window_s: int, num_windows: int, seed: int) -> JudgedDay:
    rates = [_rate(number, num_windows) for number in range(num_windows)]
    asks = _asks(rates, window_s, Random(seed))
    run = run_virtual(VirtualEngine(scheduler=scheduler, costs=StepCosts()), asks, seed=seed)
    by_window: list[list[tuple[LoadAsk, AskOutcome]]] = [[] for _ in rates]
    for ask, outcome in zip(asks, run.outcomes, strict=True):
        by_window[int(ask.arrival_s // window_s)].append((ask, outcome))
    windows = [_judged(number, window_s, part) for number, part in enumerate(by_window)]
    return JudgedDay(rates=rates, windows=windows, charge=sum(_net(ask) for ask in asks))


def _rate(number: int, num_windows: int) -> float:
    """Requests per second: lowest at midnight, highest at noon."""
    swing = 1 - SWING * math.cos(2 * math.pi * number / num_windows)
    return PEAK_RATE * swing / (1 + SWING)


def _asks(rates: Sequence[float], window_s: int, rng: Random) -> list[LoadAsk]:
    asks = []
    for number, rate in enumerate(rates):
        at_s = rng.expovariate(rate)
        while at_s < window_s:
            count = rng.randint(LEAST_OUTPUT, MOST_OUTPUT)
            arrival_s = number * window_s + at_s
            asks.append(LoadAsk(num_prompt_tokens=PROMPT_TOKENS, num_output_tokens=count, arrival_s=arrival_s))
            at_s += rng.expovariate(rate)
    return asks


def _judged(number: int, window_s: int, part: Sequence[tuple[LoadAsk, AskOutcome]]) -> PromiseWindow:
    assert PLAN.ttft_p99_ms is not None
    assert PLAN.itl_p99_ms is not None
    ttfts_ms = [1e3 * outcome.ttft_s for _, outcome in part]
    gaps_ms = [1e3 * gap_s for _, outcome in part for gap_s in outcome.gaps_s]
    window = PromiseWindow(
        plan=PLAN.name, window_s=window_s, number=number,
        num_ttft=len(ttfts_ms), num_ttft_over=sum(one > PLAN.ttft_p99_ms for one in ttfts_ms),
        num_itl=len(gaps_ms), num_itl_over=sum(one > PLAN.itl_p99_ms for one in gaps_ms),
    )  # fmt: skip
    stake = sum(stake_of(PLAN, _amounts(ask)) for ask, _ in part)
    return replace(window, stake=stake, credit=stake // PER_MICRO_UNIT if window.is_missed else 0)


def _net(ask: LoadAsk) -> int:
    return _amounts(ask).net


def _amounts(ask: LoadAsk) -> Amounts:
    counts = TokenCounts(num_prompt=ask.num_prompt_tokens, num_output=ask.num_output_tokens)
    return price_request(PLAN, DEFAULT_SIZE, counts)
