"""A log that nothing reads: who writes a line goes on, and what is lost is told."""

from __future__ import annotations

import io
import logging
import threading

import pytest
from prometheus_client import CollectorRegistry

from stratos.rpc.log_thread import LogThread, log_by_thread, num_lost_lines
from stratos.rpc.metrics import LoopMetrics
from tests.support.waiting import wait_until


class Stuck(logging.Handler):
    """Writes once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write, self.has_begun = threading.Event(), threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.has_begun.set()
        self.may_write.wait()
        self.lines.append(record.getMessage())


def record(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, "", 0, text, args, None)


def told(number: int) -> str:
    return f"{number} log lines were lost: stderr is read too slowly, or takes nothing"


def test_a_handler_that_is_stuck_stops_no_writer_and_the_lost_lines_are_counted() -> None:
    stuck = Stuck()
    handler = LogThread(stuck, max_waiting=3)
    handler.handle(record("first"))
    stuck.has_begun.wait()
    for number in range(5):
        handler.handle(record("line %d", number))
    assert handler.num_lost == 2
    stuck.may_write.set()
    handler.close()
    assert stuck.lines[:1] == ["first"]
    assert [line for line in stuck.lines if line.startswith("line")] == ["line 0", "line 1", "line 2"]
    assert [line for line in stuck.lines if "lost" in line] == [told(2)]


def test_what_cannot_be_written_is_counted_and_told_once_lines_can_be_written_again() -> None:
    class Full(io.StringIO):
        has_room = False

        def write(self, text: str) -> int:
            if not self.has_room:
                raise OSError(28, "No space left on device")
            return super().write(text)

    disk = Full()
    handler = LogThread(logging.StreamHandler(disk))
    handler.handle(record("first"))
    handler.handle(record("second"))
    wait_until(lambda: handler.num_lost == 2, "both are lost")
    disk.has_room = True
    handler.handle(record("third"))
    handler.close()
    assert set(disk.getvalue().splitlines()) == {"third", told(2)}
    assert handler.num_lost == 2


def test_the_number_of_lost_lines_never_falls() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    seen = list[int]()

    class Watched(logging.StreamHandler[Full]):
        def emit(self, record: logging.LogRecord) -> None:
            super().emit(record)
            seen.append(handler.num_lost)

    handler = LogThread(Watched(Full()))
    for _ in range(3):
        handler.handle(record("x"))
    wait_until(lambda: len(seen) == 6, "three lines and what is told of them")
    handler.close()
    assert seen == [1, 1, 2, 2, 3, 3]


def test_a_record_that_cannot_be_formatted_is_a_fault_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    class Wrong(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            if record.msg == "x":
                raise ZeroDivisionError
            return super().format(record)

    target = logging.StreamHandler(io.StringIO())
    target.setFormatter(Wrong())
    handler = LogThread(target)
    handler.handle(record("%d", "no number"))
    handler.handle(record("x"))
    handler.close()
    assert handler.num_lost == 0
    shown = capsys.readouterr().err
    assert "ZeroDivisionError" in shown
    assert "TypeError" in shown


def test_the_metric_of_lost_lines_takes_a_number_that_falls() -> None:
    metrics = LoopMetrics(registry := CollectorRegistry())
    for num_lost in (3, 2, 4):
        metrics.show_lost_lines(num_lost)
    assert registry.get_sample_value("stratos_log_lines_lost_total") == 4


def test_a_line_is_that_of_the_moment_when_it_was_logged() -> None:
    stuck, items = Stuck(), [1]
    handler = LogThread(stuck)
    handler.handle(record("%s", items))
    items.append(2)
    stuck.may_write.set()
    handler.close()
    assert stuck.lines == ["[1]"]


def test_the_end_of_a_process_does_not_wait_for_ever() -> None:
    stuck = Stuck()
    handler = LogThread(stuck)
    handler.handle(record("x"))
    handler.close()
    assert stuck.lines == []
    stuck.may_write.set()
    wait_until(lambda: stuck.lines == ["x"], "it is written at last")


def test_the_handlers_of_a_process_are_back_at_the_end() -> None:
    root, stuck = logging.getLogger(), Stuck()
    before, stuck_before = list(root.handlers), num_lost_lines()
    root.addHandler(stuck)
    stuck.may_write.set()
    try:
        with log_by_thread():
            logging.getLogger("x").warning("hello")
            assert stuck not in root.handlers
        assert stuck in root.handlers
        assert stuck.lines == ["hello"]
    finally:
        root.handlers[:] = before
    assert num_lost_lines() == stuck_before
