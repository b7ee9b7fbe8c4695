"""The calling side: channels that notice dead peers quickly, and a health check.

``use_local_subchannel_pool`` gives each channel a connection of its own, so that closing one and dialling
again does not inherit another's back-off.  Proxies from the environment are never used.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stratos.rpc.errors import translate_errors

__all__ = ["MAX_MESSAGE_BYTES", "channel", "is_serving", "translate_errors", "wait_serving"]

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


def channel(address: str) -> grpc.aio.Channel:
    """A plain-text channel to host:port; it connects at the first call and reconnects by itself.

    Services take ``Dialer.channel`` instead, which knows of mTLS.
    """
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


async def is_serving(peer: grpc.aio.Channel, service: str = "", *, timeout_s: float = 1.0) -> bool:
    """Whether the peer answers that ``service`` ("" for the whole process) is SERVING."""
    stub = health_pb2_grpc.HealthStub(peer)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def wait_serving(peer: grpc.aio.Channel, service: str = "", *, timeout_s: float = 30.0) -> None:
    """Wait until the peer is SERVING.

    Raises:
        TimeoutError: it was not within ``timeout_s``.
    """
    async with asyncio.timeout(timeout_s):
        while not await is_serving(peer, service):  # noqa: ASYNC110 - polls another process
            await asyncio.sleep(0.05)
