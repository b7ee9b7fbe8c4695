"""Looking for a free port must not take one away from a process that is just about to listen."""

import socket

import pytest

from stratos.cli.local.ports import any_free_port, first_free_port, is_free
from stratos.common.errors import DependencyDown

HOST = "127.0.0.1"


def listener(port: int) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((HOST, port))
    server.listen(1)
    return server


def test_a_listening_port_is_busy_and_the_next_is_taken():
    port = any_free_port()
    with listener(port):
        assert not is_free(HOST, port)
        assert first_free_port(HOST, port) > port
    assert is_free(HOST, port)


def test_a_probe_under_way_does_not_keep_a_server_from_listening(monkeypatch):
    port, servers = any_free_port(), []
    real_bind = socket.socket.bind

    class Probe(socket.socket):
        def bind(self, address):
            real_bind(self, address)
            monkeypatch.undo()  # the server's own socket is an ordinary one
            servers.append(listener(port))  # listens while the probe holds the port

    monkeypatch.setattr("stratos.cli.local.ports.socket.socket", Probe)
    assert is_free(HOST, port)
    assert not is_free(HOST, port)
    servers[0].close()


def test_no_port_at_all():
    with pytest.raises(DependencyDown, match="--port"):
        first_free_port("203.0.113.1", 65530)
