"""Loops on a virtual clock: when requests are sent, and that a stall is in every latency that it touches."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from stratos.cli.load.client.run import LoadProgress, RunPlan, run_plan
from stratos.cli.load.measured import LoadResult, TimedAnswer
from stratos.cli.load.report.summary import load_report
from stratos.cli.load.workload.arrivals import BurstArrivals, ClosedLoop, GammaArrivals
from stratos.cli.load.workload.lengths import FixedLength
from stratos.cli.load.workload.sessions import PlannedSession, PlannedTurn, Workload, first_requests, sessions
from tests.support.virtual_loop import run_virtual

WORKLOAD = Workload(prompt=FixedLength(1), output=FixedLength(2))
CONSTANT = GammaArrivals(100.0, 0.0)


@dataclass
class VirtualServer:
    """Answers after 10 ms with two tokens 10 ms apart, one request after the other while it stalls."""

    stall_s: tuple[float, float] = (0.0, 0.0)
    """Begins and ends: no token comes in between."""
    fails: Callable[[PlannedSession], str] = lambda session: ""
    prepare_s: float = 0.0
    num_open: int = 0
    most_open: int = 0
    sent: list[int] = field(default_factory=list)

    def prepare(self, session: PlannedSession, turn: PlannedTurn) -> bytes:
        if self.prepare_s:
            asyncio.get_running_loop().jump(self.prepare_s)  # type: ignore[attr-defined]
        return b""

    async def send(self, session: PlannedSession, body: bytes) -> TimedAnswer:
        loop = asyncio.get_running_loop()
        self.sent.append(session.number)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        answer = TimedAnswer(sent_s=loop.time(), failure=self.fails(session))
        for _ in range(0 if answer.failure else 2):
            await asyncio.sleep(0.01)
            await self._pass_stall()
            answer.token_times_s.append(loop.time())
        self.num_open -= 1
        return answer

    async def _pass_stall(self) -> None:
        begin_s, end_s = (START_S + one for one in self.stall_s)
        now = asyncio.get_running_loop().time()
        if begin_s <= now < end_s:
            await asyncio.sleep(end_s - now)


START_S = 1000.0


def run(server: VirtualServer, plan: RunPlan, progress: LoadProgress | None = None) -> LoadResult:
    return run_virtual(run_plan(plan, server, progress))


def open_plan(num_requests: int, arrivals: GammaArrivals | BurstArrivals = CONSTANT) -> RunPlan:
    return RunPlan(sessions=first_requests(sessions(WORKLOAD, arrivals, "1"), num_requests))


def test_an_open_loop_sends_at_the_intended_times_however_slow_the_server_is() -> None:
    result = run(VirtualServer(stall_s=(0.0, 5.0)), open_plan(100))
    sent = sorted(request.answer.sent_s - START_S for request in result.requests)
    assert sent == pytest.approx([0.01 * number for number in range(1, 101)])
    assert max(request.lag_s for request in result.requests) < 1e-6


def test_a_stalled_second_is_in_the_p99_of_an_open_loop() -> None:
    result = run(VirtualServer(stall_s=(2.0, 3.0)), open_plan(1000))
    figures = load_report(result, None).all
    assert figures.ttft.p99 == pytest.approx(900, abs=25)  # a tenth of the requests waits, evenly from 0 to 1 s
    assert figures.ttft.most == pytest.approx(1000, abs=1)
    assert figures.ttft.p50 == pytest.approx(10, abs=1e-3)
    assert load_report(result, None).client.is_valid


def test_a_closed_loop_hides_the_same_second_which_is_why_there_are_open_ones() -> None:
    plan = RunPlan(sessions=first_requests(sessions(WORKLOAD, None, "1"), 1000), closed=ClosedLoop(2))
    figures = load_report(run(VirtualServer(stall_s=(2.0, 3.0)), plan), None).all
    assert figures.ttft.most == pytest.approx(1000, abs=20)
    assert figures.ttft.p99 < 100


def test_a_client_that_is_late_calls_the_run_invalid_and_its_lag_counts() -> None:
    """A body takes 20 ms to make and one is due every 10 ms: the client, not the server, is behind."""
    result = run(VirtualServer(prepare_s=0.02), open_plan(200))
    report = load_report(result, None)
    assert not report.client.is_valid
    assert "late" in report.client.faults[0]
    assert report.client.send_lag.most == pytest.approx(1e3 * (200 * 0.02 - 200 * 0.01), rel=0.02)
    assert report.all.ttft.p99 > 1900


def test_a_burst_goes_out_at_once() -> None:
    server = VirtualServer()
    result = run(server, open_plan(30, BurstArrivals(10, 1.0)))
    assert server.most_open == 10
    assert sorted({round(r.intended_s - START_S, 6) for r in result.requests}) == [0.0, 1.0, 2.0]


def test_a_closed_loop_keeps_its_streams_open_and_ends_with_its_time() -> None:
    server = VirtualServer()
    plan = RunPlan(sessions=sessions(WORKLOAD, None, "1"), closed=ClosedLoop(3), duration_s=0.99)
    result = run(server, plan)
    assert server.most_open == 3
    assert len(result.requests) == 150
    assert result.duration_s == pytest.approx(1.0, abs=0.021)


def test_an_open_loop_ends_with_its_time_and_waits_for_the_last_answer() -> None:
    plan = RunPlan(sessions=sessions(WORKLOAD, CONSTANT, "1"), duration_s=1.0)
    result = run(VirtualServer(stall_s=(0.5, 4.0)), plan)
    assert len(result.requests) == 99
    assert result.duration_s == pytest.approx(4.01, abs=0.02)


def test_a_turn_counts_from_the_end_of_the_one_before_and_its_pause() -> None:
    workload = Workload(prompt=FixedLength(1), output=FixedLength(2), turns=FixedLength(3), think_s=5.0)
    plan = RunPlan(sessions=first_requests(sessions(workload, CONSTANT, "1"), 3))
    first, second, third = run(VirtualServer(), plan).requests
    assert second.intended_s == pytest.approx(first.answer.token_times_s[-1] + second.turn.think_s)
    assert third.ttft_s == pytest.approx(0.01)


def test_a_session_ends_with_a_refusal_and_others_go_on() -> None:
    workload = Workload(prompt=FixedLength(1), output=FixedLength(2), turns=FixedLength(2))
    server = VirtualServer(fails=lambda session: "503 full" if session.number == 0 else "")
    progress = LoadProgress()
    result = run(server, RunPlan(sessions=first_requests(sessions(workload, CONSTANT, "1"), 4)), progress)
    assert sorted(server.sent) == [0, 1, 1]
    assert (progress.num_sent, progress.num_completed, progress.num_failed) == (3, 2, 1)
    assert load_report(result, None).refusals == {"503 full": 1}


def test_warm_up_requests_are_sent_before_and_not_counted() -> None:
    server, progress = VirtualServer(), LoadProgress()
    warm_up = itertools.islice(sessions(WORKLOAD, None, "w"), 20)
    plan = RunPlan(sessions=first_requests(sessions(WORKLOAD, CONSTANT, "1"), 5), warm_up=warm_up)
    result = run(server, plan, progress)
    assert len(server.sent) == 25
    assert len(result.requests) == progress.num_sent == 5
    assert result.duration_s == pytest.approx(0.07, abs=1e-3)
