"""Bounds of time that users are promised: the group ``promise``.

On a busy machine such a figure is the machine's. So a test with a bound is two: one in the default group, which proves
the order of events, and one in the group ``promise``, in which the bound counts, too. ``make test-promises`` runs that
group alone, one test after another, prints every figure beside its bound, and repeats once those that failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

KEY = "promise"

Promised = Callable[[str, float], AbstractContextManager[None]]
"""``with promised("a lost worker is out", 1.0):`` around what has to be over within so many seconds."""


@pytest.fixture(params=["order", pytest.param(KEY, marks=pytest.mark.promise)])
def promised(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Promised:
    """Stopwatch around a block: in the group ``promise`` its bound counts, and the end of the run shows the figure."""

    @contextmanager
    def measured(what: str, within_s: float) -> Iterator[None]:
        begin_s = time.monotonic()
        yield
        took_s = time.monotonic() - begin_s
        if request.param == KEY:
            record_property(KEY, f"{took_s:7.3f} s of {within_s:g} s: {what}")
            assert took_s < within_s, f"{what}: took {took_s:.3f} s of {within_s:g} s"

    return measured


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Every figure, of green tests, too."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    figures = [figure for report in reports for key, figure in report.user_properties if key == KEY]
    if figures:
        terminalreporter.write_sep("=", "promises: measured, and the bound")
        for figure in figures:
            terminalreporter.write_line(str(figure))
