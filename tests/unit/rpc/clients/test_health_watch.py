"""Health of a peer is heard of as it changes, and a peer that is gone is not serving."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from stratos.rpc.clients.channel import channel
from stratos.rpc.clients.health_watch import HealthWatch
from tests.support.waiting import eventually

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Peer:
    """A server of gRPC that counts how often it is asked."""

    def __init__(self) -> None:
        self.health, self.server = health.aio.HealthServicer(), grpc.aio.server()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    made = Peer()
    await made.server.start()
    yield made
    await made.server.stop(0)


async def is_false(watch: HealthWatch) -> bool:
    return not await watch.is_serving(timeout_s=1.0)


async def test_a_change_is_heard_without_a_question(peer: Peer) -> None:
    await peer.health.set("service", SERVING)
    async with channel(f"127.0.0.1:{peer.port}") as to_peer:
        watch = HealthWatch(to_peer, "service")
        assert await watch.is_serving(timeout_s=5.0)
        await peer.health.set("service", NOT_SERVING)
        await eventually(lambda: is_false(watch), "it says so")
        await peer.health.set("service", SERVING)
        await eventually(lambda: watch.is_serving(timeout_s=1.0), "it serves again")
        await watch.close()


async def test_a_peer_that_is_gone_serves_no_more(peer: Peer) -> None:
    await peer.health.set("service", SERVING)
    async with channel(f"127.0.0.1:{peer.port}") as to_peer:
        watch = HealthWatch(to_peer, "service")
        assert await watch.is_serving(timeout_s=5.0)
        await peer.server.stop(0)
        await eventually(lambda: is_false(watch), "it is gone")
        await watch.close()
