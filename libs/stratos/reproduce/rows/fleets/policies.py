"""Placement policies on one fleet, with questions about long documents: what each finds in the caches, and how fast.

A fixed number of clients sends the next request when the last one has ended.  Policies that know what lies in which
cache save prefill; those that look at load alone spread each prefix over all workers.
"""

from __future__ import annotations

from stratos.calculators.formula import Formula
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import between
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultTable, RowResult
from stratos.routing.policy.settings import NAMED, RoutingPoliciesConfig
from stratos.sim.fleet import FleetConfig, SimFleet
from stratos.sim.report import Report
from stratos.sim.traces import shared_prefixes

JUDGED, PLAIN = "prefix", "round_robin"
RAMP_S, WARM_UP = 2.0, 0.15
"""Seconds over which clients begin, and the share of the requests that only warm the caches up."""
GAIN = Formula("gain", "requests_per_s / round_robin_requests_per_s")


def measure(conditions: RowConditions) -> RowResult:
    """All named policies on the same sessions."""
    workers, sessions, concurrency = conditions.sized(smoke=(2, 32, 16), short=(8, 480, 120), full=(8, 960, 160))
    found = {policy: _run(policy, workers, sessions, concurrency, conditions.seed) for policy in NAMED}
    plain = found[PLAIN].requests_per_s
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=between("4.15", "a prefix cache saves 50-90 % of prefill", 0.5, 0.9),
                own=OwnFigure(
                    name="hit_ratio", value=found[JUDGED].hit_ratio, kind=FigureKind.SIMULATED,
                    how=f"policy {JUDGED}, {workers} workers, prefixes that fit no single cache",
                ),
            )
        ],
        tables=[
            ResultTable(
                title=f"{workers} workers, {concurrency} clients, {sessions} sessions over shared prefixes, simulated",
                kind=FigureKind.SIMULATED,
                columns=("policy", "requests_per_s", "against_round_robin", "hit_ratio", "ttft_p50_ms", "ttft_p99_ms",
                         "balance"),
                rows=[
                    (
                        policy, one.requests_per_s,
                        float(GAIN.of(requests_per_s=one.requests_per_s, round_robin_requests_per_s=plain)),
                        one.hit_ratio, 1e3 * one.ttft_p50_s, 1e3 * one.ttft_p99_s, one.balance,
                    )
                    for policy, one in found.items()
                ],
            )
        ],
        notes=["Balance is the load of the fullest worker over the mean, averaged over time: 1 is even."],
    )  # fmt: skip


def _run(policy: str, workers: int, sessions: int, concurrency: int, seed: int) -> Report:
    config = FleetConfig(
        num_workers=workers,
        policies=RoutingPoliciesConfig(default=policy),
        concurrency=concurrency,
        ramp_s=RAMP_S,
        seed=seed,
    )
    return SimFleet(config, shared_prefixes(seed, num_sessions=sessions)).run().report(skip=WARM_UP)
