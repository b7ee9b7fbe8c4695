"""Arithmetic of reports: percentiles, goodput, refusals, groups, the client's verdict, names of fields."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence

import numpy as np
import pytest

from stratos.cli.load.measured import ClientHealth, LoadResult, MeasuredRequest, TimedAnswer
from stratos.cli.load.report.bench_json import details_json, report_json
from stratos.cli.load.report.percentiles import Distribution, distribution
from stratos.cli.load.report.slo import LatencyPromise, parse_slo
from stratos.cli.load.report.summary import load_report
from stratos.cli.load.report.table import reports_text
from stratos.cli.load.workload.prompts import Segment
from stratos.cli.load.workload.senders import Sender
from stratos.cli.load.workload.sessions import PlannedSession, PlannedTurn
from stratos.common.errors import BadRequest

VLLM_FIELDS = {
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests", "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
    "median_tpot_ms", "std_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "median_itl_ms", "std_itl_ms", "p99_itl_ms",
    "mean_e2el_ms", "median_e2el_ms", "std_e2el_ms", "p99_e2el_ms",
}  # fmt: skip
VLLM_DETAILS = {"input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"}


def measured(
    times_s: Sequence[float] = (), *, intended_s: float = 0.0, lag_s: float = 0.0, failure: str = "",
    sender: str = "a", class_name: str = "", model: str = "m", num_output: int | None = None,
) -> MeasuredRequest:  # fmt: skip
    turn = PlannedTurn(segments=(Segment(1, 10),), num_output_tokens=4)
    session = PlannedSession(
        number=0, at_s=intended_s, sender=Sender(name=sender, class_name=class_name), model=model, turns=(turn,)
    )
    answer = TimedAnswer(
        sent_s=intended_s + lag_s, token_times_s=array("d", times_s), failure=failure, num_output_tokens=num_output
    )
    return MeasuredRequest(session=session, turn=turn, intended_s=intended_s, answer=answer)


def result(*requests: MeasuredRequest, duration_s: float = 2.0, health: ClientHealth | None = None) -> LoadResult:
    return LoadResult(requests=list(requests), duration_s=duration_s, health=health or ClientHealth())


def test_a_distribution_has_its_moments_and_none_is_all_zeros() -> None:
    found = distribution([3.0, 1.0, 2.0])
    assert (found.count, found.mean, found.p50, found.most) == (3, 2.0, 2.0, 3.0)
    assert found.std == pytest.approx(float(np.std([1, 2, 3])))
    assert distribution([]) == Distribution()


def test_latency_counts_from_the_intended_arrival() -> None:
    request = measured([1.5, 1.6, 1.8], intended_s=1.0, lag_s=0.3)
    figures = load_report(result(request), None).all
    assert figures.ttft.p50 == pytest.approx(500)
    assert figures.e2e.p50 == pytest.approx(800)
    assert (figures.itl.count, figures.itl.most) == (2, pytest.approx(200))
    assert figures.tpot.p50 == pytest.approx(150)
    assert request.lag_s == pytest.approx(0.3)


def test_tokens_of_one_event_do_not_make_a_server_look_slow() -> None:
    """Two events of four tokens each: seven gaps between tokens, whatever the events are."""
    figures = load_report(result(measured([0.0, 0.7], num_output=8)), None).all
    assert figures.tpot.mean == pytest.approx(100)
    assert figures.num_output_tokens == 8


def test_goodput_counts_requests_that_keep_every_promise() -> None:
    promise = LatencyPromise(ttft_ms=400, itl_ms=35)
    good, late, slow = measured([0.4, 0.43]), measured([0.41, 0.43]), measured([0.1, 0.2])
    report = load_report(result(good, late, slow, measured(failure="503 full")), promise)
    assert report.all.goodput_per_s == 0.5
    assert report.all.good_share == 0.25
    assert load_report(result(good), None).all.goodput_per_s is None
    assert LatencyPromise(e2e_ms=100).is_kept(measured([0.05, 0.11])) is False


@pytest.mark.parametrize(
    "text",
    ["ttft", "ttft=", "ttft=0", "ttft=-1", "tpot=3", "ttft=400;itl=3", ",", "ttft=nan", "itl=inf", "ttft=1,ttft=2"],
)
def test_other_promises_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--slo must be"):
        parse_slo(text)


def test_promises_are_read() -> None:
    assert parse_slo("ttft=400,itl=35") == LatencyPromise(ttft_ms=400, itl_ms=35)
    assert parse_slo("") is None


def test_refusals_are_counted_by_reason_and_no_latency_is_theirs() -> None:
    refused = [measured(failure="503 full"), measured(failure="429 limit"), measured(failure="503 full")]
    report = load_report(result(measured([0.2]), *refused), None)
    assert list(report.refusals.items()) == [("503 full", 2), ("429 limit", 1)]
    assert (report.all.num_completed, report.all.num_failed, report.all.ttft.count) == (1, 3, 1)


def test_tenants_classes_and_models_are_told_apart_where_there_are_several() -> None:
    report = load_report(
        result(measured([0.1], sender="a", class_name="gold"), measured([0.3], sender="b", class_name="batch")), None
    )
    assert {name: part.ttft.p50 for name, part in report.by_tenant.items()} == {
        "a": pytest.approx(100),
        "b": pytest.approx(300),
    }
    assert list(report.by_class) == ["batch", "gold"]
    assert report.by_model == {}


def test_peaks_are_those_of_the_busiest_moment() -> None:
    report = load_report(result(measured([0.1, 0.2, 1.5]), measured([0.4], intended_s=0.3), measured([3.0])), None)
    assert report.peak_output_tokens_per_s == 3
    assert report.peak_open == 3


def test_a_client_is_believed_within_bounds() -> None:
    def faults(request: MeasuredRequest, **health: float) -> tuple[str, ...]:
        delays = array("d", [health.pop("delay_s", 0.0)])
        return load_report(result(request, health=ClientHealth(loop_delays_s=delays, **health)), None).client.faults

    quick, slow = measured([0.05, 0.06], lag_s=0.02), measured([5.0, 5.1], lag_s=0.3)
    assert len(faults(quick)) == 1
    assert faults(slow) == (), "0.3 s are borne where the first token takes 5 s"
    assert "its loop was 50.0 ms late" in faults(measured([0.05, 0.06]), delay_s=0.05)[0]
    assert faults(slow, delay_s=0.05) == ()
    assert "95% of a core" in faults(slow, cpu_s=1.9, duration_s=2.0)[0]
    assert faults(slow, cpu_s=1.0, duration_s=2.0) == ()


def test_a_client_without_sockets_is_told() -> None:
    request = measured(failure="connection: ConnectError")
    request.answer.is_client_fault = True
    assert "no socket left for 1 requests" in load_report(result(request), None).client.faults[0]


def test_fields_have_the_names_that_vllm_gives_them() -> None:
    found = result(measured([0.1, 0.2]), measured(failure="503 full"))
    report = load_report(found, LatencyPromise(ttft_ms=200))
    content = json.loads(json.dumps(report_json(report, {"arrivals": "poisson:1"}) | details_json(found)))
    assert content.keys() >= VLLM_FIELDS | VLLM_DETAILS | {"p50_ttft_ms", "p95_ttft_ms", "arrivals", "client"}
    assert content["refusals"] == {"503 full": 1}
    assert content["request_goodput"] == 0.5
    assert content["client"]["is_valid"] is True
    assert content["ttfts"] == [0.1, 0.0]
    assert content["errors"] == ["", "503 full"]


def test_the_table_has_a_line_for_each_run_and_says_what_is_wrong() -> None:
    health = ClientHealth(loop_delays_s=array("d", [0.5]))
    report = load_report(result(measured([0.1, 0.15]), measured(failure="503 full"), health=health), None)
    lines = reports_text([("poisson:3", report), ("closed:1", load_report(result(measured([0.1])), None))]).splitlines()
    assert lines[1].split()[:5] == ["poisson:3", "0.50", "-", "1.0", "1"]
    assert lines[2].startswith("closed:1")
    assert any(line.startswith("poisson:3: INVALID") for line in lines)
    assert "poisson:3: 1 x 503 full" in lines


@pytest.mark.parametrize(("count", "is_said"), [(1, False), (2, True), (100, True), (101, False)])
def test_the_table_says_where_p99_is_of_few_requests(count: int, is_said: bool) -> None:
    """Between 100 values the 99th percentile is the last step but a hundredth; with one more it is a value."""
    report = load_report(result(*(measured([0.1 + number / 1000]) for number in range(count))), None)
    line = f"closed:1: p99 of TTFT and e2e lies between the two slowest of {count} requests"
    assert (line in reports_text([("closed:1", report)])) == is_said
    assert (report.all.ttft.p99 > 1e3 * (0.1 + (count - 2) / 1000)) == (is_said or count == 1)
