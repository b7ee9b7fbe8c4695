"""The gRPC server of a service: its servicers, health, the edge interceptor, and a port that must be free."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from stratos.common.tls.files import TlsFiles
from stratos.rpc.binding import check_bindable, explain_bind_failure
from stratos.rpc.clients.channel import MAX_MESSAGE_BYTES
from stratos.rpc.metrics import RpcMetrics
from stratos.rpc.serving.access import Access
from stratos.rpc.serving.interceptors import EdgeInterceptor
from stratos.rpc.serving.service import Service
from stratos.rpc.serving.tls import add_port

SERVER_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.so_reuseport", 0),  # a busy port is an error, not a second listener
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
)
_POLL_S = 0.02


class GrpcServer:
    """Not listening until ``listen``; health says NOT_SERVING until ``set_serving(True)``."""

    def __init__(self, service: Service) -> None:
        self._tls: TlsFiles | None = service.dialer.tls
        access = Access(self._tls.config.domain) if self._tls is not None else None
        self._edge = EdgeInterceptor(RpcMetrics(service.metrics, service.name), access)
        self._server = grpc.aio.server(interceptors=[self._edge], options=SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()
        self._names = ("", *service.register(self._server))
        self._is_serving: bool | None = None
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def listen(self, address: str, setting: str) -> int:
        """Listen and answer; returns the port.

        Args:
            address: host:port.
            setting: name of the setting that holds it, for the message.

        Raises:
            StartError: the address cannot be bound.
        """
        check_bindable(address, setting)  # before grpc tries, which would log the failure in its own words
        await self.set_serving(False)
        try:
            port = add_port(self._server, address, self._tls)
        except RuntimeError:
            port = 0
        if port == 0:
            raise explain_bind_failure(address, setting) from None
        await self._server.start()
        return port

    async def set_serving(self, is_serving: bool) -> None:
        """Tell health checks of the process and of every servicer."""
        if is_serving == self._is_serving:
            return
        self._is_serving = is_serving
        status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, status)

    async def wait_unary_idle(self) -> None:
        """Wait until no call with a single response is open."""
        while self._edge.num_unary_open:  # noqa: ASYNC110 - only at the end of a process
            await asyncio.sleep(_POLL_S)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give open ones ``grace_s``, cancel the rest."""
        await self._server.stop(grace_s)
