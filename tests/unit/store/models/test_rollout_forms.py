"""Roll-outs as JSON, and as people write them: what cannot be is refused by its field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.store.models.rollout_forms import (
    parsed_gates,
    parsed_span_s,
    parsed_steps,
    rollout_from_json,
    rollout_to_json,
)
from stratos.store.models.rollout_record import Baseline, RolloutGates, RolloutPhase, RolloutRecord
from stratos.store.records.record import Kind, make_body, parse_record

OLD, NEW = "a" * 64, "b" * 64
ROLLOUT = RolloutRecord(
    model="org/base", old=OLD, new=NEW, steps=(10, 50, 100), hold_s=300, gates=RolloutGates(errors=0.5, itl_p99=20),
    phase=RolloutPhase.PAUSED, step=1, is_applied=True, since_us=7, epoch=3, baseline=Baseline(itl_p99_us=5),
)  # fmt: skip


def test_a_tag_goes_over_among_the_revisions_of_its_model() -> None:
    tag = replace(ROLLOUT, model="org/base@stable")
    assert parse_record(Kind.ROLLOUT, tag.model, f"7 {make_body(rollout_to_json(tag))}").value == tag
    assert {target.model for target in tag.targets} == {"org/base"}
    with pytest.raises(BadRequest):
        rollout_from_json("org/base@3f9a12cd", rollout_to_json(ROLLOUT))


def test_a_roll_out_is_read_as_it_was_written() -> None:
    assert "drift" not in str(rollout_to_json(ROLLOUT))  # gateways that do not know that gate read all others
    assert parse_record(Kind.ROLLOUT, ROLLOUT.model, f"7 {make_body(rollout_to_json(ROLLOUT))}").value == ROLLOUT
    shares = [(target.digest, target.weight) for target in ROLLOUT.targets]
    assert shares == [(OLD, 50), (NEW, 50)]
    for phase, step, targets in ((RolloutPhase.DONE, 2, [NEW]), (RolloutPhase.ROLLED_BACK, 1, [OLD])):
        assert [target.digest for target in replace(ROLLOUT, phase=phase, step=step).targets] == targets


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"new": OLD}, "to"),
        ({"new": "b"}, "new"),
        ({"steps": []}, "steps"),
        ({"steps": [10, 50]}, "steps"),
        ({"steps": [50, 50, 100]}, "steps"),
        ({"steps": [0, 100]}, "steps.0"),
        ({"steps": [*range(1, 21), 100]}, "steps"),
        ({"step": 3}, "step"),
        ({"hold_s": 0}, "hold_s"),
        ({"min_requests": 199}, "min_requests"),
        ({"gates": {}}, "gates"),
        ({"gates": {"drift": -1}}, "gates.drift"),
        ({"gates": {"moon": 1}}, "gates.moon"),
        ({"gates": {"errors": 101}}, "gates.errors"),
        ({"gates": {"drift": 0.0009}}, "gates.drift"),
        ({"steps": [100], "step": 0}, "gates"),  # nothing to compare with
        ({"sticky": "moon"}, "sticky"),
        ({"phase": "moon"}, "phase"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        rollout_from_json(ROLLOUT.model, rollout_to_json(ROLLOUT) | changes)
    assert refused.value.param == param


def test_steps_times_and_gates_are_read_as_people_write_them() -> None:
    assert parsed_steps("10,50,100") == [10, 50, 100]
    assert [parsed_span_s(text, "hold") for text in ("90", "90s", "5m", "1.5h")] == [90, 90, 300, 5400]
    assert parsed_gates("errors=0.5%,ttft_p99=+20%") == {"errors": 0.5, "ttft_p99": 20}
    assert parsed_gates("drift=0.05") == {"drift": 0.05}
    for text in ("10", "100,10", "10,,100", "x", "10,100%", ""):
        with pytest.raises(BadRequest):
            parsed_steps(text)
    for text in ("5 m", "m", "-1s", "1d", ""):
        with pytest.raises(BadRequest):
            parsed_span_s(text, "hold")
    refused_texts = (
        "errors", "errors=1", "errors=+1%", "ttft_p99=20%", "errors=1%,errors=2%", "moon=1%", "drift=1%", "drift=+1",
        "drift=-1", "drift", "drift=0", "drift=0.0009", "",
    )  # fmt: skip
    for text in refused_texts:
        with pytest.raises(BadRequest) as refused:
            parsed_gates(text)
        assert refused.value.param == "gates"
