"""Connections without a request end in time, by one timer for all answers of each."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.protocol import BoundedHttpProtocol

KEEP_S = 10


class HandLoop:
    """Time passes by hand, and timers are counted."""

    def __init__(self) -> None:
        self.now_s, self.num_timers = 100.0, 0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, after_s: float, work: Callable[[], None]) -> Mock:
        handle = Mock()
        self.num_timers += 1
        self.due.append((self.now_s + after_s, lambda: None if handle.cancel.called else work()))
        return handle

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds
        due, self.due = self.due, [timer for timer in self.due if timer[0] > self.now_s]
        for at_s, work in due:
            if at_s <= self.now_s:
                work()


@pytest.fixture
def connection() -> Any:
    made = cast("Any", BoundedHttpProtocol.__new__(BoundedHttpProtocol))
    vars(made).update(
        loop=HandLoop(), flow=Mock(), transport=Mock(), server_state=Mock(total_requests=0), pipeline=[],
        cycle=SimpleNamespace(response_complete=True), timeout_keep_alive=KEEP_S, timeout_keep_alive_task=None,
        _limits=HttpLimits(), _answered_s=0.0, _timer=None, _behind=None, _num_bytes=0, _in_message=False,
    )  # fmt: skip
    made.transport.is_closing.return_value = False
    return made


def test_an_idle_connection_ends_after_its_last_answer(connection: Any) -> None:
    for _ in range(50):
        connection.on_response_complete()
        connection.loop.pass_by(1.0)
    assert connection.loop.num_timers < 10, "answers make none"
    connection.loop.pass_by(KEEP_S - 2)
    connection.transport.close.assert_not_called()
    connection.loop.pass_by(1.0)
    connection.transport.close.assert_called_once()


def test_one_whose_request_runs_or_begins_does_not_end_before_its_answer(connection: Any) -> None:
    connection.on_response_complete()
    for state in ({"_num_bytes": 7}, {"_in_message": True}, {"cycle": SimpleNamespace(response_complete=False)}):
        before = {name: vars(connection)[name] for name in state}
        vars(connection).update(state)
        connection.loop.pass_by(3.0 * KEEP_S)
        connection.transport.close.assert_not_called()
        vars(connection).update(before)
        connection.on_response_complete()
    connection.loop.pass_by(KEEP_S)
    connection.transport.close.assert_called_once()
