"""Where figures were measured: what of the machine others took."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratos.reproduce import machine
from stratos.reproduce.machine import LoadWatch, read_environment


def test_the_environment_names_the_machine_and_the_commit() -> None:
    found = read_environment()
    assert found["cores"] >= 1
    assert found["memory_gb"] > 0
    assert len(found["commit"].rstrip("+")) in (0, 40)


def watched(monkeypatch: pytest.MonkeyPatch, lines: list[str], own_s: list[float]) -> dict[str, object]:
    """What a watch says that saw these lines of the kernel's, and this time of its own process."""
    of_all, own = iter(lines), iter(own_s)
    monkeypatch.setattr(machine.Path, "read_text", lambda *_, **__: next(of_all))
    monkeypatch.setattr(LoadWatch, "_own_s", staticmethod(lambda: next(own)))
    monkeypatch.setattr(machine.os, "sysconf", lambda _: 100)
    return LoadWatch().as_json()


def test_time_of_others_is_what_this_process_did_not_take(monkeypatch) -> None:
    lines = ["cpu 0 0 0 1000 0 0 0 0 0 0", "cpu 300 0 100 1500 0 0 0 100 0 0"]
    # 5 s busy, steal included, of 10 s; 2 s are ours
    assert watched(monkeypatch, lines, [1.0, 3.0]) == {"cpu_s": 2.0, "foreign_share": 0.3, "loaded": True}


def test_a_system_without_that_file_has_no_load(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert LoadWatch().as_json()["loaded"] is False


def test_a_moment_is_too_short_to_say_what_others_took(monkeypatch) -> None:
    """Two of its ten ticks are another's, or only rounding."""
    lines = ["cpu 0 0 0 1000 0 0 0 0 0 0", "cpu 5 0 0 1005 0 0 0 0 0 0"]
    assert watched(monkeypatch, lines, [1.0, 1.03]) == {"cpu_s": 0.03, "foreign_share": 0.0, "loaded": False}
