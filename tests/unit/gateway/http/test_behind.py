"""Clients that do not read as fast as they are sent to: those that take nothing are dropped, others are waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest

from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.protocol import BoundedHttpProtocol

LIMITS = HttpLimits(write_timeout_s=3.0)


class Timers:
    """Loop whose time passes by hand."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None], Mock]] = []

    def call_later(self, after_s: float, work: Callable[..., None], *args: Any) -> Mock:
        handle = Mock()
        self.due.append((after_s, lambda: None if handle.cancel.called else work(*args), handle))
        return handle

    def pass_by(self) -> None:
        """The time of all of them is over."""
        due, self.due = self.due, []
        for after_s, work, _ in due:
            assert after_s == 2 * LIMITS.write_timeout_s
            work()


@pytest.fixture
def connection() -> Any:
    made = cast("Any", BoundedHttpProtocol.__new__(BoundedHttpProtocol))
    vars(made).update(loop=Timers(), flow=Mock(), transport=Mock(), _limits=LIMITS, _behind=None)
    made.transport.get_write_buffer_size.return_value = 100_000
    return made


def test_one_that_takes_nothing_is_dropped(connection: Any) -> None:
    connection.pause_writing()
    connection.flow.pause_writing.assert_called_once()
    connection.loop.pass_by()
    connection.transport.abort.assert_called_once()


def test_one_that_takes_some_each_time_is_waited_for(connection: Any) -> None:
    connection.pause_writing()
    for left in (90_000, 89_999, 1):
        connection.transport.get_write_buffer_size.return_value = left
        connection.loop.pass_by()
    connection.transport.abort.assert_not_called()
    connection.loop.pass_by()
    connection.transport.abort.assert_called_once()


def test_one_that_has_caught_up_is_timed_no_more(connection: Any) -> None:
    connection.pause_writing()
    connection.resume_writing()
    connection.flow.resume_writing.assert_called_once()
    connection.loop.pass_by()
    connection.transport.abort.assert_not_called()
