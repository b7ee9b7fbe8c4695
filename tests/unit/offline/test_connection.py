"""Which Ray clusters are taken, without Ray."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stratos.common.errors import DependencyDown, PermissionDenied
from stratos_offline.cluster.connection import connect, prepare_environment
from stratos_offline.options import EngineOptions, JobOptions


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


class FakeRay:
    """A cluster whose processes have an environment of their own."""

    def __init__(self, mode: str | None) -> None:
        self.mode = mode
        self.joined: list[str] = []
        self.num_left = 0

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **settings: Any) -> None:
        self.joined.append(address)

    def remote(self, function: Any) -> Any:
        return SimpleNamespace(options=lambda **asked: SimpleNamespace(remote=lambda: function))

    def get(self, function: Any) -> Any:
        if self.mode is None:
            raise RuntimeError("no module named stratos_offline")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_AUTH_MODE", self.mode)
            return function()

    def shutdown(self) -> None:
        self.num_left += 1


def join(ray: FakeRay, monkeypatch: pytest.MonkeyPatch, *, allow_open: bool = False) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # of the driver alone
    engine = EngineOptions(model_path="/models/m")
    connect(JobOptions(file="f", out="o", engine=engine, ray="head:6379", allow_open_cluster=allow_open))


def test_a_cluster_at_an_address_that_asks_for_no_token_is_refused_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay("disabled")
    with pytest.raises(PermissionDenied, match="asks for no token"):
        join(ray, monkeypatch)
    assert (ray.joined, ray.num_left) == (["head:6379"], 1)
    join(ray, monkeypatch, allow_open=True)
    assert ray.num_left == 1


def test_a_cluster_that_asks_for_tokens_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay("token")
    join(ray, monkeypatch)
    assert (ray.joined, ray.num_left) == (["head:6379"], 0)


def test_a_cluster_that_cannot_say_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DependencyDown, match="no node of the cluster says"):
        join(FakeRay(None), monkeypatch)
