"""What a ladder of open streams says in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.open_streams import outcome, settings
from scripts.bench.request_rate import client_limit
from stratos.reproduce.gpu_checks import COMMITTED
from stratos.reproduce.record.conditions import RowConditions, RowForm
from stratos.reproduce.rows.calculated import committed_figures
from stratos.rpc.settings import ServiceSettings, check_names
from stratos_decode_worker.settings import DecodeWorkerSettings
from stratos_gateway.settings import GatewaySettings
from stratos_router.settings import RouterSettings

CORES = {"gateways": 1.2}
PERCENT = {"gateway/http": 60.0}


def rung(streams: int, of_due: float, **more: Any) -> dict[str, Any]:
    return {"streams": streams, "tokens_per_s": streams * of_due, "of_due": of_due, "cores": CORES,
            "machine_cores": 1.9, "percent": PERCENT, **more}  # fmt: skip


def test_the_outcome_is_where_two_cores_end_with_the_profile_there() -> None:
    found = outcome([rung(500, 1.0), rung(1000, 0.97), rung(2000, 0.7)], 0.95)
    assert (found["borne"], found["not_borne"], found["profile_of"]) == (1000, 2000, 2000)
    assert (found["cores"], found["percent"]) == (CORES, PERCENT)


def test_a_number_that_was_refused_has_the_profile_of_the_one_before() -> None:
    refused = {"streams": 2000, "ended": "queue_timeout", "of_due": 0.0}
    found = outcome([rung(1000, 1.0), refused], 0.95)
    assert (found["borne"], found["not_borne"], found["why"], found["profile_of"]) == (
        1000, 2000, "queue_timeout", 1000,
    )  # fmt: skip


def test_a_ladder_that_was_borne_to_its_end_says_no_number_that_was_not() -> None:
    assert outcome([rung(500, 1.0)], 0.95)["not_borne"] is None
    nothing = outcome([{"streams": 500, "ended": "overloaded", "of_due": 0.0}], 0.95)
    assert (nothing["borne"], nothing["not_borne"], nothing["profile_of"]) == (0, 500, None)


@pytest.mark.parametrize("service", [GatewaySettings, RouterSettings, DecodeWorkerSettings])
def test_the_services_know_every_bound_that_is_lifted(service: type[ServiceSettings]) -> None:
    found = {name: value for name, value in settings(10_000).items() if name.startswith(service.env_prefix)}
    assert found
    check_names(service, found)


def test_a_ladder_of_rates_has_the_same_outcome() -> None:
    rungs = [{"requests_per_s": rate, "answered_per_s": per_s, "of_due": per_s / rate, "cores": CORES,
              "machine_cores": 1.9, "percent": PERCENT} for rate, per_s in ((400, 398.5), (500, 431.0))]  # fmt: skip
    found = outcome(rungs, 0.95, "requests_per_s", "answered_per_s")
    assert (found["borne"], found["tokens_per_s"], found["not_borne"]) == (400, 398.5, 500)


def test_a_rate_that_the_client_could_not_send_says_so() -> None:
    late, quick = (rung(1000, 0.5) | client_limit(lag_s, is_borne=False) for lag_s in (0.025, 0.001))
    assert outcome([rung(500, 1.0), late], 0.95)["why"] == "the client was 25 ms late (p99), so it is the limit"
    assert outcome([rung(500, 1.0), quick], 0.95)["why"] == ""
    assert client_limit(0.025, is_borne=True) == {}


REFUSED = {"streams": 500, "ended": "overloaded", "of_due": 0.0}


@pytest.mark.parametrize(("rungs", "cells"), [
    ([rung(500, 1.0), rung(1000, 0.5)], (500, 1000, 500.0, 1.9, 1000, "gateway/http 60")),
    ([REFUSED], (0, 500, 0.0, "", "", "")),
])  # fmt: skip
def test_the_report_has_the_outcome_of_a_file_as_it_is(
    tmp_path: Path, rungs: list[dict[str, Any]], cells: tuple[object, ...]
) -> None:
    outcomes = outcome(rungs, 0.95)
    for file in COMMITTED.glob("*-2core-cpu.json"):
        (tmp_path / file.name).symlink_to(file)
    where = {"cpu": "a cpu", "load_average": [0.1], "commit": "abc"}
    file = {"environment": where, "tokens": 1, "outcome": outcomes, "rungs": []}
    (tmp_path / "open-requests-here.json").write_text(json.dumps(file))
    table = committed_figures.measure(RowConditions(form=RowForm.SMOKE, folder=tmp_path), tmp_path).tables[-1]
    assert table.rows[-1] == (
        "open-requests-here.json", "a cpu", 0.1, "abc", 1, *cells,
    )  # fmt: skip
