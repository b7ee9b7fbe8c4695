"""Decisions of the autoscaler, as people read them."""

from __future__ import annotations

import datetime

from stratos.api.autoscaler.v1 import autoscaler_pb2
from stratos.cli.decisions import decisions_json, decisions_text

NOW = datetime.datetime(2026, 1, 2, 12, 0, 0, tzinfo=datetime.UTC)
HELD = autoscaler_pb2.Decision(
    age_ms=60_000, last_age_ms=1000, num_times=60, role="decode", model="base", mode="planner", direction="hold",
    reason="at_max", blocked="queue", desired=2,
    inputs=autoscaler_pb2.Inputs(num_live=2, backlog=70, utilisation=0.91, ttft_p95_ms=1414.2),
)  # fmt: skip
UNKNOWN = autoscaler_pb2.Decision(
    age_ms=500, last_age_ms=500, num_times=1, role="decode", mode="planner", direction="hold", reason="no_data"
)
DRAINED = autoscaler_pb2.Decision(
    age_ms=0, num_times=1, role="prefill", mode="hpa", direction="down", reason="idle", desired=0, victim="prefill-1",
    inputs=autoscaler_pb2.Inputs(num_live=1, num_draining=1),
)  # fmt: skip


def test_each_decision_is_a_line_with_its_inputs_and_what_was_in_the_way() -> None:
    answer = autoscaler_pb2.ListDecisionsResponse(decisions=[HELD, UNKNOWN, DRAINED], is_active=True)
    assert decisions_text(answer, NOW).splitlines() == [
        "this autoscaler acts",
        "11:59:00  decode base [planner]: hold because of at_max (wanted: queue); 2 live; 70 waiting, 91% in use, "
        "TTFT p95 1414 ms  x60, until 11:59:59",
        "11:59:59  decode [planner]: hold because of no_data; no data",
        "12:00:00  prefill [hpa]: down to 0 because of idle, prefill-1 leaves; 1 live, 1 draining; "
        "0 waiting, 0% in use",
    ]


def test_json_tells_missing_inputs_from_zeros() -> None:
    answer = autoscaler_pb2.ListDecisionsResponse(decisions=[UNKNOWN, DRAINED], problem="no router answers")
    content = decisions_json(answer, NOW)
    assert (content["is_active"], content["problem"]) == (False, "no router answers")
    assert content["decisions"][0]["inputs"] is None
    assert content["decisions"][1]["inputs"]["ttft_p95_ms"] is None


def test_a_time_beyond_all_counts_is_told_as_the_last_of_their_bounds() -> None:
    slow = autoscaler_pb2.Decision(inputs=autoscaler_pb2.Inputs(num_live=1, ttft_p95_ms=float("inf")))
    answer = autoscaler_pb2.ListDecisionsResponse(decisions=[slow])
    assert decisions_json(answer, NOW)["decisions"][0]["inputs"]["ttft_p95_ms"] == 64_000
    assert "TTFT p95 at least 64000 ms" in decisions_text(answer, NOW)
