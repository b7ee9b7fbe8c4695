"""``stratos models rollout``: what was written is checked before anything is asked, and told in lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stratos.cli.models.rollouts import RolloutAsk, call_rollout, rollout_text
from stratos.common.errors import BadRequest

VERBS = {"pause": False, "resume": False, "abort": False}


class Client:
    """Takes calls of the admin API, and answers with them."""

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return {"called": (method, path, body)}


def ask(to: str = "", verbs: Mapping[str, bool] = VERBS, min_requests: int | None = None, **given: str) -> RolloutAsk:
    return RolloutAsk(name="org/base", to=to, given=given, min_requests=min_requests, verbs=verbs)


def test_a_start_has_defaults_and_each_change_has_its_call() -> None:
    def called(asked: RolloutAsk) -> Any:
        return call_rollout(Client(), asked)["called"]  # type: ignore[arg-type]

    path = "/rollouts/org/base"
    least = {"to": "77e01b42", "steps": [10, 50, 100], "hold_s": 300.0, "gates": {"errors": 0.5}}
    assert called(ask("77e01b42")) == ("PUT", path, least)
    more = ask("77e01b42", min_requests=0, steps="50,100", hold="90s", gates="itl_p99=+5%", sticky="request")
    assert called(more)[2] == {
        "to": "77e01b42", "steps": [50, 100], "hold_s": 90.0, "gates": {"itl_p99": 5.0}, "sticky": "request",
        "min_requests": 0,  # which the platform refuses by name
    }  # fmt: skip
    assert called(ask()) == ("GET", path, None)
    assert called(ask(verbs={**VERBS, "abort": True})) == ("POST", f"{path}/abort", None)


def test_what_cannot_be_or_does_not_go_together_is_refused() -> None:
    for given in ({"steps": "10"}, {"hold": "soon"}, {"gates": "drift=1%"}, {"gates": "moon=1%"}):
        with pytest.raises(BadRequest) as refused:
            ask("77e01b42", **given)
        assert refused.value.param == next(iter(given))
    for asked in ({"to": "77e01b42", "verbs": {**VERBS, "pause": True}}, {"steps": "100"}, {"min_requests": 200}):
        with pytest.raises(BadRequest) as refused:
            ask(**asked)  # type: ignore[arg-type]
        assert refused.value.param == "--to"


def test_a_roll_out_is_told_with_what_its_gates_say() -> None:
    row = {
        "model": "base", "old": "a" * 64, "new": "b" * 64, "phase": "running", "percent": 10, "steps": [10, 100],
        "hold_s": 300.0, "reason": "", "verdicts": [{"outcome": "waits", "text": "requests: 3"}],
    }  # fmt: skip
    head, verdict = rollout_text(row).splitlines()
    assert "aaaaaaaaaaaa -> bbbbbbbbbbbb  running at 10 % (steps 10, 100; hold 300 s)" in head
    assert verdict.split() == ["waits", "requests:", "3"]
    head, note = rollout_text({**row, "is_applied": False, "verdicts": [], "notes": ["no workers"]}).splitlines()
    assert head.endswith("(weights not written yet)")
    assert note == "  no workers"
