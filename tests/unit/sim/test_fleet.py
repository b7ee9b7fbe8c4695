"""Simulated fleets: every request ends, runs repeat, and policies differ in what they are for."""

from __future__ import annotations

from functools import cache

import pytest

from stratos.engine.settings import SchedulerConfig
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.sim.fleet import FleetConfig, SimFleet
from stratos.sim.report import Recorder, Report, SimulatedOutcome
from stratos.sim.timeline import Timeline
from stratos.sim.traces import ClientSession, mixed, shared_prefixes
from stratos.sim.worker import WorkerConfig

SESSIONS = shared_prefixes(1, num_prefixes=8, num_sessions=96, prefix_tokens=256)
POOL = WorkerConfig(num_blocks=128, scheduler=SchedulerConfig(max_num_seqs=4))
"""Holds the prefixes of 4 of 8 groups, beside what runs."""


def run(policy: str, sessions: list[ClientSession], worker: WorkerConfig = POOL) -> Report:
    config = FleetConfig(num_workers=4, worker=worker, policies=RoutingPoliciesConfig(default=policy), concurrency=8)
    return SimFleet(config, sessions).run().report()


@cache
def whole(policy: str) -> Report:
    """Of all sessions; runs repeat, so each policy has one."""
    return run(policy, SESSIONS)


def test_runs_repeat_and_end_every_request() -> None:
    first = run("prefix", SESSIONS[:32])
    assert first == run("prefix", SESSIONS[:32])
    assert (first.num_requests, whole("prefix").num_requests) == (32, len(SESSIONS))
    assert first.output_tokens_per_s > 0


@pytest.mark.parametrize("policy", ["prefix", "session_affinity"])
def test_affinity_finds_prefixes_that_turns_in_order_scatter(policy: str) -> None:
    affine, scattered = whole(policy), whole("round_robin")
    assert affine.hit_ratio > scattered.hit_ratio + 0.1
    assert affine.requests_per_s > scattered.requests_per_s


def test_turns_of_a_session_find_their_history_by_precise_match() -> None:
    chat = next(session for session in mixed(3, num_sessions=20) if len(session.turns) > 3)
    report = run("prefix", [ClientSession(0, chat.turns)], worker=WorkerConfig())
    prompts = [len(turn.prompt_ids) for turn in chat.turns]
    histories = [len(turn.prompt_ids) + turn.num_output_tokens for turn in chat.turns[:-1]]
    cached = sum(history // 16 * 16 for history in histories)  # full blocks; the last sampled token has no KV yet
    assert report.hit_ratio == pytest.approx(cached / sum(prompts), abs=16 * len(prompts) / sum(prompts))


def test_arrivals_by_themselves_come_at_their_rate() -> None:
    config = FleetConfig(num_workers=4, worker=POOL, sessions_per_s=20.0)
    report = SimFleet(config, SESSIONS).run().report()
    assert report.requests_per_s == pytest.approx(20.0, rel=0.3)


def test_events_of_one_time_keep_their_order() -> None:
    timeline, seen = Timeline(), []
    timeline.at(2.0, lambda: seen.append("late"))
    timeline.at(1.0, lambda: timeline.at(0.5, lambda: seen.append("in the past")))
    timeline.at(1.0, lambda: seen.append("second"))
    timeline.run()
    assert seen == ["second", "in the past", "late"]
    assert timeline.now() == 2.0


def test_a_report_leaves_the_warming_up_out() -> None:
    outcomes = [
        SimulatedOutcome(
            arrived_s=i, first_token_s=i + 0.1 * i, ended_s=i + 1.0, num_prompt_tokens=10, num_cached_tokens=i
        )
        for i in range(10)
    ]
    report = Recorder(outcomes=outcomes, loads=[(1, 3), (1, 3)]).report(skip=0.5)
    assert report.num_requests == 5
    assert report.requests_per_s == pytest.approx(1.0)
    assert report.hit_ratio == pytest.approx(0.7)
    assert report.ttft_p50_s == pytest.approx(0.7)
    assert report.ttft_p99_s == pytest.approx(0.896)
    assert report.balance == pytest.approx(1.5)
