"""Credentials that a job makes in the cluster: once, and only what is missing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stratos.cli.cluster.credentials import MAKERS, complete_credentials
from stratos.common.errors import BadRequest
from stratos.store.data_keys import parse_platform_key
from stratos.store.keys import Peppers, parse_key


class FakeSecrets:
    def __init__(self) -> None:
        self.found: dict[str, dict[str, bytes]] = {}
        self.num_writes = 0

    def read(self, name: str) -> dict[str, bytes]:
        return dict(self.found.get(name, {}))

    def write(self, name: str, files: Mapping[str, bytes]) -> None:
        self.num_writes += 1
        self.found[name] = dict(files)


def test_they_are_made_once_and_fit_what_reads_them() -> None:
    store = FakeSecrets()
    assert complete_credentials(store, "credentials", list(MAKERS)) == list(MAKERS)
    made = {name: value.decode() for name, value in store.found["credentials"].items()}
    assert len(parse_platform_key(made["platform-key"])) == 32
    assert parse_key(made["api-key"]) != parse_key(made["admin-key"])
    assert Peppers(current=made["key-pepper"])
    assert all(made[name].isalnum() for name in ("redis-password", "object-store-key")), (
        "they stand in URLs and headers"
    )
    assert complete_credentials(store, "credentials", list(MAKERS)) == []
    assert store.num_writes == 1


def test_what_is_there_stays_when_more_is_wanted() -> None:
    store = FakeSecrets()
    store.found["credentials"] = {"key-pepper": b"of the installation", "extra": b"theirs"}
    assert complete_credentials(store, "credentials", ["key-pepper", "admin-key"]) == ["admin-key"]
    assert store.found["credentials"]["key-pepper"] == b"of the installation"
    assert store.found["credentials"]["extra"] == b"theirs"


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(BadRequest, match="nothing makes peper"):
        complete_credentials(FakeSecrets(), "credentials", ["peper"])
