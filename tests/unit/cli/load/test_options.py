"""Flags to plans: what bounds a run, what is refused before anything is sent."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratos.cli.load.client.run import LoadProgress
from stratos.cli.load.harness import conditions_of
from stratos.cli.load.options import OPEN_LOOP_S, LoadOptions, run_plan_of
from stratos.cli.load.progress import progress_line
from stratos.cli.load.workload.arrivals import ClosedLoop
from stratos.cli.load.workload.senders import Sender
from stratos.cli.main import app
from stratos.common.errors import BadRequest


def test_a_closed_loop_ends_by_its_streams_and_an_open_one_by_time() -> None:
    closed, opened = (run_plan_of(LoadOptions(), text) for text in ("closed:8", "poisson:1"))
    assert closed.closed == ClosedLoop(8)
    assert len(list(closed.sessions)) == 24
    assert (opened.closed, opened.duration_s) == (None, OPEN_LOOP_S)


def test_requests_and_duration_bound_a_run_together() -> None:
    plan = run_plan_of(LoadOptions(requests=5, duration=9.0), "gamma:2,0")
    assert len(list(plan.sessions)) == 5
    assert plan.duration_s == 9.0
    assert run_plan_of(LoadOptions(duration=9.0), "closed:2").duration_s == 9.0


def test_a_trace_is_sent_whole_unless_it_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"timestamp": {ms}, "input_length": 3, "output_length": 2}}\n' for ms in range(9)))
    whole, cut = (run_plan_of(LoadOptions(requests=count), f"trace:{path}") for count in (0, 4))
    assert (len(list(whole.sessions)), whole.duration_s) == (9, math.inf)
    assert len(list(cut.sessions)) == 4
    path.write_text("x\n")
    with pytest.raises(BadRequest, match=r"t\.jsonl:1: not JSON"):
        run_plan_of(LoadOptions(), f"trace:{path}")


def test_two_runs_of_one_command_send_different_prompts() -> None:
    first, second = (next(run_plan_of(LoadOptions(), f"closed:{n}").sessions) for n in (1, 8))
    assert first.turns[0].segments != second.turns[0].segments


def test_a_warm_up_has_the_prefixes_of_its_run_and_other_prompts() -> None:
    plan = run_plan_of(LoadOptions(warm_up=3, shared_prefixes="1,64"), "closed:2")
    warm, session = list(plan.warm_up), next(plan.sessions)
    assert len(warm) == 3
    assert warm[0].turns[0].segments[0] == session.turns[0].segments[0]
    assert warm[0].turns[0].segments[1] != session.turns[0].segments[1]


def test_tenants_of_a_file_send(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"name": "a", "key": "k1"}, {"name": "b", "key": "k2"}]))
    plan = run_plan_of(LoadOptions(tenants=path, models=("m",)), "poisson:5")
    assert {s.sender.name for s in itertools.islice(plan.sessions, 30)} == {"a", "b"}
    assert next(run_plan_of(LoadOptions(key="sk"), "closed:1").sessions).sender == Sender(key="sk")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"requests": -1}, "--requests"),
        ({"duration": math.inf}, "--duration"),
        ({"trace_speed": 0.0}, "--trace-speed must be above 0"),
        ({"think_s": math.nan}, "--think-s"),
        ({"vocab_size": 10}, "--vocab-size must be above 10"),
        ({"api": "responses"}, "--api must be"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        LoadOptions(**options)


@pytest.mark.parametrize("text", ["3", "3,0", "0,3", "a,b", "3,4,5"])
def test_other_prefixes_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--shared-prefixes must be COUNT,TOKENS"):
        run_plan_of(LoadOptions(shared_prefixes=text), "closed:1")


@pytest.mark.parametrize("text", ["[]", "{", "3"])
def test_other_bodies_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--extra-body must be a JSON object"):
        LoadOptions(extra_body=text).target("http://x/v1")


@pytest.mark.parametrize("url", ["ftp://x/v1", "http://", "http:///v1", "http://x:port/v1", "https://x:99999/v1", "x"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="--url must be http:// or https:// with a host"):
        LoadOptions().target(url)


@pytest.mark.parametrize(
    "changes",
    [{"requests": 5}, {"duration": 9.0}, {"prompt_tokens": "9"}, {"output_tokens": "9"}, {"shared_prefixes": "1,64"},
     {"turns": "2"}, {"think_s": 2.0}, {"warm_up": 3}, {"slo": "ttft=9"}, {"seed": 1}, {"trace_speed": 2.0},
     {"api": "chat"}, {"ignore_eos": False}, {"models": ("m",)}, {"vocab_size": 99}],
    ids=str,
)  # fmt: skip
def test_conditions_tell_what_made_a_run_another_one(changes: dict[str, Any]) -> None:
    one, other = (conditions_of(options, "poisson:1", 0.0) for options in (LoadOptions(), LoadOptions(**changes)))
    assert one != other


def test_the_command_refuses_in_one_line() -> None:
    for arguments, message in ((["--arrivals", "x"], "--arrivals must be"), ([], "--url needs --model")):
        model = ["--model", "m"] if arguments else []
        found = CliRunner().invoke(app, ["bench", "--url", "http://127.0.0.1:1/v1", *model, *arguments])
        assert found.exit_code == 1
        assert f"error: {message}" in found.output


def test_progress_is_one_line() -> None:
    progress = LoadProgress(num_sent=5, num_completed=2, num_failed=1, num_output_tokens=100)
    assert progress_line("x", progress, 4.0) == "x  4 s  5 sent, 2 open, 2 done, 1 failed, 25.0 tokens/s"
