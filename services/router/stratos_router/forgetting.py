"""Has every worker drop what it caches of a tenant that was deleted; nothing of it is in a request's path."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import grpc.aio

from stratos.api.worker.v1 import cache_pb2, cache_pb2_grpc

_log = logging.getLogger(__name__)
TIMEOUT_S = 5.0
"""A worker does it between two steps."""


class TenantForgetting:
    """Belongs to the event loop.

    Args:
        addresses: host:port of every known worker, live or not: one that is out for now has its blocks still.
        connect: makes a channel to host:port.
    """

    def __init__(self, addresses: Callable[[], Iterable[str]], connect: Callable[[str], grpc.aio.Channel]) -> None:
        self._addresses = addresses
        self._connect = connect

    async def forget_tenant(self, tenant: str) -> tuple[int, int]:
        """Call all workers at once; returns how many have dropped it, and how many did not answer."""
        answers = await asyncio.gather(*(self._forget_at(address, tenant) for address in set(self._addresses())))
        return sum(answers), len(answers) - sum(answers)

    async def _forget_at(self, address: str, tenant: str) -> bool:
        peer = self._connect(address)
        try:
            request = cache_pb2.ForgetTenantRequest(tenant=tenant)
            await cache_pb2_grpc.CacheServiceStub(peer).ForgetTenant(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            _log.warning("worker at %s keeps the cache of a deleted tenant: %s", address, error.code().name.lower())
            return False
        finally:
            await peer.close()
        return True
