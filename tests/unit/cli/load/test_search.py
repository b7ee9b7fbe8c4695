"""Searches on made-up servers: the limit is found within its sharpness, by few runs, and a late client is told."""

from __future__ import annotations

import asyncio
import math
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from stratos.cli.load.harness import LoadMeasurement
from stratos.cli.load.measured import ClientHealth, LoadResult, MeasuredRequest, TimedAnswer
from stratos.cli.load.report.slo import LatencyPromise
from stratos.cli.load.report.summary import load_report
from stratos.cli.load.search.bracket import Bracket, SearchSpace, find_limit
from stratos.cli.load.search.modes import SearchAsk, SearchMode, SearchResult, search
from stratos.cli.load.workload.prompts import Segment
from stratos.cli.load.workload.senders import Sender
from stratos.cli.load.workload.sessions import PlannedSession, PlannedTurn
from stratos.cli.main import app
from stratos.common.errors import BadRequest

CAPACITY, BATCH = SearchMode.CAPACITY, SearchMode.BATCH
PROMISE = LatencyPromise(ttft_ms=400)
TURN = PlannedTurn(segments=(Segment(1, 1),), num_output_tokens=2)


def limit_of(space: SearchSpace, limit: float) -> tuple[Bracket, list[float]]:
    tried: list[float] = []

    async def is_borne(load: float) -> bool:
        assert load not in tried, "each load is tried once"
        tried.append(load)
        return load <= limit

    return asyncio.run(find_limit(space, is_borne)), tried


@given(limit=st.floats(1, 1000))
def test_a_rate_is_found_within_the_ratio(limit: float) -> None:
    found, tried = limit_of(SearchSpace(least=1, most=1024), limit)
    assert found.borne is not None
    assert found.not_borne is not None
    assert found.borne <= limit < found.not_borne < 1.1 * found.borne
    assert len(tried) == len(set(tried)) <= 16


@given(limit=st.integers(1, 1023))
def test_a_number_of_streams_is_found_exactly(limit: int) -> None:
    found, tried = limit_of(SearchSpace(least=1, most=1024, is_whole=True), limit)
    assert (found.borne, found.not_borne) == (limit, limit + 1)
    assert all(load == int(load) for load in tried)
    assert len(tried) <= 2 * math.ceil(math.log2(limit + 1)) + 2


def test_the_ends_of_the_space_are_told() -> None:
    assert limit_of(SearchSpace(least=4, most=50), 3)[0] == Bracket(borne=None, not_borne=4)
    found, tried = limit_of(SearchSpace(least=4, most=50), 100)
    assert found == Bracket(borne=50, not_borne=None)
    assert tried == [4, 8, 16, 32, 50]


def test_a_limit_of_few_requests_an_hour_is_found() -> None:
    found, _ = limit_of(SearchSpace(least=0.001, most=1), 0.0045)
    assert found.borne is not None
    assert found.borne <= 0.0045 < 1.1 * found.borne


def measurement(
    arrivals: str, ttft_s: float, *, num_failed: int = 0, lag_s: float = 0.0, count: int = 100
) -> LoadMeasurement:
    """A run of so many requests with this TTFT."""
    session = PlannedSession(number=0, at_s=0.0, sender=Sender(), model="m", turns=(TURN,))
    answers = [TimedAnswer(sent_s=lag_s, token_times_s=array("d", [ttft_s, ttft_s + 0.01])) for _ in range(count)]
    for answer in answers[:num_failed]:
        answer.failure = "503 full"
    found = [MeasuredRequest(session=session, turn=TURN, intended_s=0.0, answer=answer) for answer in answers]
    result = LoadResult(requests=found, health=ClientHealth(), duration_s=1.0)
    return LoadMeasurement(arrivals=arrivals, result=result, report=load_report(result, PROMISE), conditions={})


def queue(arrivals: str, capacity: float) -> float:
    """TTFT of a queue at rho = load / capacity: 0.1 s / (1 - rho)."""
    load = float(arrivals.partition(":")[2])
    return 0.1 / max(1 - load / capacity, 0.01)


def found_by(measure: Any, mode: SearchMode = CAPACITY, **ask: Any) -> SearchResult:
    async def run(arrivals: str) -> LoadMeasurement:
        return measure(arrivals)

    return asyncio.run(search(SearchAsk(mode=mode, **ask), run))


def test_the_capacity_is_the_highest_rate_that_keeps_the_promise() -> None:
    """0.1 s / (1 - rho) is 0.4 s at three quarters of the capacity."""
    found = found_by(lambda arrivals: measurement(arrivals, queue(arrivals, 40)), has_promise=True)
    assert found.bracket.borne == pytest.approx(30, rel=0.1)
    assert found.runs[0].arrivals == "poisson:1"
    assert found.sentence().startswith(f"{found.bracket.borne:g} requests/s keep the promise, ")
    document = found.as_json()
    assert document["borne"] == found.bracket.borne
    assert [run["is_borne"] for run in document["runs"]] == list(found.borne)


def test_without_a_promise_the_knee_is_found_at_half_of_a_queues_capacity() -> None:
    found = found_by(lambda arrivals: measurement(arrivals, queue(arrivals, 400)), has_promise=False)
    assert found.bracket.borne == pytest.approx(200, rel=0.1)
    assert "below the knee" in found.sentence()


def test_refusals_are_above_the_knee_however_quick_the_others_are() -> None:
    def measure(arrivals: str) -> LoadMeasurement:
        return measurement(arrivals, 0.1, num_failed=2 if float(arrivals.partition(":")[2]) > 10 else 0)

    assert found_by(measure, has_promise=False).bracket.borne == pytest.approx(10, rel=0.1)


def test_the_largest_batch_is_one_of_closed_loops() -> None:
    found = found_by(lambda arrivals: measurement(arrivals, queue(arrivals, 40)), BATCH, has_promise=True)
    assert (found.bracket.borne, found.bracket.not_borne) == (30, 31)
    assert {run.arrivals.partition(":")[0] for run in found.runs} == {"closed"}
    assert found.sentence() == "30 streams keep the promise, 31 do not"


def test_a_client_that_cannot_send_more_is_the_limit_and_says_so() -> None:
    found = found_by(
        lambda arrivals: measurement(arrivals, 0.3, lag_s=0.2 if float(arrivals.partition(":")[2]) > 20 else 0.0),
        has_promise=True,
    )
    assert found.is_client_limit
    assert found.sentence().endswith("the client could not send them")


def test_a_client_that_cannot_send_the_least_load_says_nothing_of_the_server() -> None:
    found = found_by(lambda arrivals: measurement(arrivals, 0.3, lag_s=0.2), has_promise=True)
    assert found.is_client_limit
    assert found.sentence() == "not even 1 requests/s keep the promise: the client could not send them"


def test_a_run_that_sent_nothing_ends_a_search() -> None:
    """By chance a low rate has no arrival in its time; that is no load that is not borne."""

    def measure(arrivals: str) -> LoadMeasurement:
        return measurement(arrivals, 0.1, count=0 if arrivals == "poisson:2" else 100)

    with pytest.raises(BadRequest, match="poisson:2 sent no request"):
        found_by(measure, has_promise=True)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"mode": BATCH, "has_promise": False}, "give --slo"),
        ({"mode": CAPACITY, "least": 0.0}, "--least"),
        ({"mode": CAPACITY, "least": 9.0, "most": 8.0}, "--least"),
        ({"mode": CAPACITY, "share": 1.5}, "--kept-share"),
        ({"mode": BATCH, "least": 1.5}, "whole numbers"),
        ({"mode": BATCH, "most": math.inf}, "--most, which has an end"),
    ],
)
def test_senseless_searches_are_refused(ask: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        SearchAsk(**{"has_promise": True, **ask})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--find", "rate"], "--find must be capacity or batch"), (["--find", "batch"], "give --slo"),
     (["--find", "capacity", "--arrivals", "closed:1"], "leave --arrivals out")],
)  # fmt: skip
def test_the_command_refuses_them_in_one_line(arguments: list[str], message: str) -> None:
    found = CliRunner().invoke(app, ["bench", "--url", "http://127.0.0.1:1/v1", "--model", "m", *arguments])
    assert found.exit_code == 1
    assert message in found.output
