"""The header of a client's deadline, and the server's maxima."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from stratos.common.errors import BadRequest
from stratos_gateway.answering.edge import TimeAllowed, time_allowed

MOST = TimeAllowed(60.0, 3600.0)


def request(*values: str) -> Request:
    return Request({"type": "http", "headers": [(b"x-stratos-deadline-ms", value.encode()) for value in values]})


def test_a_client_may_ask_for_less_than_the_servers_maxima() -> None:
    assert time_allowed(request(), MOST) == MOST
    assert time_allowed(request("1500"), MOST) == TimeAllowed(1.5, 1.5)
    assert time_allowed(request("90000"), MOST) == TimeAllowed(60.0, 90.0)
    assert time_allowed(request("90000"), TimeAllowed(60.0, 70.0)) == TimeAllowed(60.0, 70.0)


def test_two_values_are_none() -> None:
    with pytest.raises(BadRequest):
        time_allowed(request("5", "6"), MOST)
