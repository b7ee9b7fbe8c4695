"""Which Ray clusters are taken, without Ray."""

from __future__ import annotations

import os

import pytest

from stratos.common.errors import PermissionDenied
from stratos_offline.cluster.connection import prepare_environment


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_tokens_are_on_and_statistics_off() -> None:
    prepare_environment((2, 60), allow_open=False)
    assert (os.environ["RAY_AUTH_MODE"], os.environ["RAY_USAGE_STATS_ENABLED"]) == ("token", "0")


def test_a_version_without_tokens_is_refused_unless_allowed() -> None:
    with pytest.raises(PermissionDenied, match=r"from 2\.52 on"):
        prepare_environment((2, 51), allow_open=False)
    prepare_environment((2, 51), allow_open=True)
    assert "RAY_AUTH_MODE" not in os.environ


def test_tokens_that_were_turned_off_are_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(PermissionDenied, match="is not token"):
        prepare_environment((2, 60), allow_open=False)
    prepare_environment((2, 60), allow_open=True)
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
