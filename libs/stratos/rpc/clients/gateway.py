"""Client of a gateway's internal port: the copy of its snapshot, the gateways that it knows."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.api.gateway.v1 import limits_pb2, limits_pb2_grpc, snapshot_pb2, snapshot_pb2_grpc
from stratos.common.errors import DependencyDown
from stratos.rpc.clients.dialer import PLAIN, Dialer, PeerRole
from stratos.rpc.errors import translate_errors

MAX_COPY_BYTES = 1 << 30
FETCH_TIMEOUT_S = 30.0
"""A copy of 100,000 records has some 30 MB."""
EXCHANGE_TIMEOUT_S = 1.0


async def fetch_snapshot(address: str, *, dialer: Dialer = PLAIN, timeout_s: float = FETCH_TIMEOUT_S) -> bytes:
    """The text of a gateway's copy of tenants, keys and adapters.

    Args:
        address: host:port of its gRPC server.
        dialer: connects.
        timeout_s: bound of the whole transfer.

    Raises:
        DependencyDown: it does not answer, or knows nothing itself.
    """
    content = bytearray()
    peer = dialer.channel(address, PeerRole.GATEWAY)
    async with peer, translate_errors(peer="the gateway", lost=DependencyDown):
        stub = snapshot_pb2_grpc.SnapshotServiceStub(peer)
        async for piece in stub.FetchSnapshot(snapshot_pb2.FetchSnapshotRequest(), timeout=timeout_s):
            content += piece.content
            if len(content) > MAX_COPY_BYTES:
                raise DependencyDown(f"the gateway at {address} sends no end of its copy")
    return bytes(content)


async def exchange_gateways(address: str, names: Sequence[str], *, dialer: Dialer = PLAIN) -> Sequence[str]:
    """Names of the gateways that the one at an address knows; it counts those that it is told.

    Args:
        address: host:port of its gRPC server.
        names: that are known here, the own one first; it answers itself with nothing.
        dialer: connects.

    Raises:
        DependencyDown: it does not answer.
    """
    peer = dialer.channel(address, PeerRole.GATEWAY)
    async with peer, translate_errors(peer="the gateway", lost=DependencyDown):
        stub = limits_pb2_grpc.LimitsServiceStub(peer)
        request = limits_pb2.ExchangeGatewaysRequest(gateways=names)
        answer = await stub.ExchangeGateways(request, timeout=EXCHANGE_TIMEOUT_S)
    return tuple(answer.gateways)
