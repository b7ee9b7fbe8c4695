"""The header of a client's deadline, and the server's maximum."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from stratos.common.errors import BadRequest
from stratos_gateway.http.deadline import time_to_first_token_s


def request(*values: str) -> Request:
    return Request({"type": "http", "headers": [(b"x-stratos-deadline-ms", value.encode()) for value in values]})


def test_a_client_may_ask_for_less_than_the_servers_maximum() -> None:
    assert time_to_first_token_s(request(), 60.0) == 60.0
    assert time_to_first_token_s(request("1500"), 60.0) == 1.5
    assert time_to_first_token_s(request("90000"), 60.0) == 60.0


def test_two_values_are_none() -> None:
    with pytest.raises(BadRequest):
        time_to_first_token_s(request("5", "6"), 60.0)
