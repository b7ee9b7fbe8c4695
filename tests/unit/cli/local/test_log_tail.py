"""Tails of logs, as a person sees them."""

from __future__ import annotations

from pathlib import Path

from stratos.cli.local.log_tail import log_tail, logged_reason

LOG = """10:00:00 INFO    decode-worker: settings: listen=127.0.0.1:0 redis_url=***
10:00:01 INFO    decode-worker: warming up
10:00:02 ERROR   decode-worker: model.safetensors is broken: load another one
Traceback (most recent call last):
  File "x.py", line 1, in <module>
    raise ValueError
ValueError: header

During handling of the above exception, another exception occurred:
"""


def test_reason_and_tail(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LOG)
    assert logged_reason(path) == "model.safetensors is broken: load another one"
    assert log_tail(path).splitlines() == [*LOG.splitlines()[1:3], "ValueError: header"]


def test_lines_that_explain_the_one_before_stay(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("invalid settings\n  STRATOS_GATEWAY_PROT: unknown setting; did you mean STRATOS_GATEWAY_PORT?\n")
    assert "did you mean" in log_tail(path)


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert log_tail(tmp_path / "none") == logged_reason(tmp_path / "none") == ""


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x" * 100 + "\n" + ("line\n" * 200_000) + "last\n")
    assert log_tail(path, 2).splitlines() == ["line", "last"]
