"""The public port: the first one that can be listened on, and held from then on."""

from __future__ import annotations

import socket

import pytest

from stratos.cli.local.ports import any_free_port, listen_from
from stratos.common.errors import DependencyDown

HOST = "127.0.0.1"


def test_a_port_that_is_taken_is_skipped() -> None:
    first = listen_from(HOST, any_free_port())
    second = listen_from(HOST, first.port)
    assert second.port > first.port
    assert second.address == f"{HOST}:{second.port}"
    port = first.port
    first.close()
    again = listen_from(HOST, port)
    assert again.port == port
    again.close()
    second.close()


def test_a_connection_that_comes_early_waits_in_the_queue() -> None:
    listener = listen_from(HOST, any_free_port())
    with socket.create_connection((HOST, listener.port), timeout=5) as early:
        early.sendall(b"x")
    listener.close()


def test_no_port_at_all() -> None:
    with pytest.raises(DependencyDown, match="--port"):
        listen_from("203.0.113.1", 65530)
