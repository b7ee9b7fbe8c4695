"""One, two, four and eight replicas of one model behind our router, with the step times of a real model.

Router, queues, engines and their schedulers are the real ones under a virtual clock; there are 24 clients for each
replica, whose batch has room for 32.  Cost is that of the published price of a device.
"""

from __future__ import annotations

from random import Random

from stratos.calculators.formula import Formula
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_least, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult
from stratos.sim.fleet import FleetConfig, SimFleet
from stratos.sim.report import Report
from stratos.sim.runner import VOCAB_SIZE
from stratos.sim.traces import ClientSession, Turn

STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 24, 128, 128
RAMP_S = 3.0
"""Duration of a request: clients of one beat would all come again at once."""
USD_PER_HOUR = 3.0
COST = Formula("usd_per_million", "usd_per_hour / (tokens_per_s * 3600) * 10 ** 6")
LINEAR = Formula("linear_share", "tokens_per_s / (replicas * single_tokens_per_s)")
CLAIMED = {2: (5500, 0.98), 4: (11_000, 0.98), 8: (21_500, 0.96)}
"""Tokens per second of so many replicas, 2,800 of one, and the share of linear growth that is given for them."""


def measure(conditions: RowConditions) -> RowResult:
    """All sizes of the fleet."""
    sizes, rounds = conditions.sized(smoke=((1, 2), 1), short=((1, 2, 4, 8), 6), full=((1, 2, 4, 8), 12))
    found = {size: _simulated(size, rounds, conditions.seed) for size in sizes}
    single = found[1].output_tokens_per_s

    def share(size: int) -> float:
        return found[size].output_tokens_per_s / (size * single)

    return RowResult(
        answers=[
            *(
                ClaimAnswer(
                    claim=at_least("4.13", f"{size} replicas: {claimed:.0%} of linear growth", claimed),
                    recomputed=LINEAR(tokens_per_s=tokens_per_s, replicas=size, single_tokens_per_s=2800),
                    own=OwnFigure(
                        name="linear_share", value=share(size), kind=FigureKind.SIMULATED,
                        how=f"{STREAMS} streams a replica",
                    ),
                )
                for size, (tokens_per_s, claimed) in CLAIMED.items()
                if size in found
            ),
            ClaimAnswer(
                claim=exactly("4.13", "3.75 USD per million tokens of one replica", 3.75, "USD"),
                recomputed=COST(usd_per_hour=USD_PER_HOUR, tokens_per_s=2800),
                own=OwnFigure(
                    name="usd_per_million", value=_cost(1, single), kind=FigureKind.SIMULATED,
                    how=f"{USD_PER_HOUR:g} USD an hour, an 8B model in 16 bits on a 24 GB card",
                ),
            ),
        ],
        tables=[
            ResultTable(
                title="Replicas of an 8B model on 24 GB cards, simulated", kind=FigureKind.SIMULATED,
                columns=("replicas", "tokens_per_s", "linear_share", "balance", "ttft_p99_s", "usd_per_million"),
                rows=[
                    (
                        size, one.output_tokens_per_s, share(size), one.balance, one.ttft_p99_s,
                        _cost(size, one.output_tokens_per_s),
                    )
                    for size, one in found.items()
                ],
            )
        ],
        plots=[
            ResultPlot(
                title="Tokens per second by replicas (simulated)", kind=FigureKind.SIMULATED, x_label="replicas",
                y_label="tokens/s",
                lines={
                    "our router": [(size, one.output_tokens_per_s) for size, one in found.items()],
                    "linear": [(size, size * single) for size in found],
                },
            )
        ],
        notes=["Balance is the load of the fullest replica over the mean, averaged over time: 1 is even."],
    )  # fmt: skip


def _simulated(num_workers: int, rounds: int, seed: int) -> Report:
    rng = Random(seed)
    sessions = [
        ClientSession(0, (Turn(tuple(rng.randrange(VOCAB_SIZE) for _ in range(PROMPT_TOKENS)), OUTPUT_TOKENS),))
        for _ in range(num_workers * STREAMS * rounds)
    ]
    config = FleetConfig(num_workers=num_workers, concurrency=num_workers * STREAMS, ramp_s=RAMP_S, seed=seed)
    return SimFleet(config, sessions).run().report(skip=1 / (2 * rounds))


def _cost(replicas: int, tokens_per_s: float) -> float:
    return float(COST.of(usd_per_hour=replicas * USD_PER_HOUR, tokens_per_s=tokens_per_s))
