"""Health of a peer, as the peer tells it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from stratos.rpc.clients.channel import channel
from stratos.rpc.clients.health_watch import HealthWatch
from tests.support.waiting import eventually

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Peer:
    """A server, and who watches it."""

    server: grpc.aio.Server
    health: health.aio.HealthServicer
    watch: HealthWatch


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    server, servicer = grpc.aio.server(), health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with channel(f"127.0.0.1:{port}") as connection:
        watch = HealthWatch(connection, "")
        yield Peer(server, servicer, watch)
        await watch.close()
    await server.stop(None)


async def is_now(peer: Peer, is_serving: bool) -> bool:
    return await peer.watch.is_serving(timeout_s=5.0) is is_serving


async def test_changes_are_heard(peer: Peer) -> None:
    for status in (SERVING, NOT_SERVING, SERVING):
        await peer.health.set("", status)
        await eventually(lambda is_up=status == SERVING: is_now(peer, is_up), "heard")


async def test_a_peer_that_leaves_need_not_wait_for_those_who_watch_it(peer: Peer) -> None:
    await peer.health.set("", SERVING)
    assert await peer.watch.is_serving(timeout_s=5.0)
    await peer.health.set("", NOT_SERVING)
    began_s = time.monotonic()
    await peer.server.stop(4.0)
    assert time.monotonic() - began_s < 2.0
    assert not await peer.watch.is_serving(timeout_s=5.0)
