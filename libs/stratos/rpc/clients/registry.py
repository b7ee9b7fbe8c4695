"""Client of the lora-registry: adapters as records, failures as ``StratosError``.

Callers that serve requests keep a snapshot of their own: an answer may fail with ``DependencyDown`` at any
time, and an empty list may be an outage of the registry's Redis.
"""

from __future__ import annotations

import grpc.aio

from stratos.api.lora.v1 import registry_pb2, registry_pb2_grpc
from stratos.common.errors import DependencyDown
from stratos.core.adapter import Adapter, AdapterVersion
from stratos.rpc.clients.dialer import PLAIN, Dialer, PeerRole
from stratos.rpc.codec.fields import each
from stratos.rpc.codec.flat import FlatCodec
from stratos.rpc.errors import translate_errors

_PEER = "the lora-registry"
_VERSION = FlatCodec(AdapterVersion, registry_pb2.AdapterVersion)
ADAPTER = FlatCodec(Adapter, registry_pb2.Adapter, fields={"former": each(_VERSION)})


class RegistryClient:
    """Calls to one registry; every method raises ``DependencyDown`` when it, or its Redis, does not answer.

    Args:
        address: host:port.
        timeout_s: bound of a call that only reads.
        register_timeout_s: bound of a registration, which reads the weights.
        dialer: connects.
    """

    def __init__(
        self, address: str, *, timeout_s: float = 2.0, register_timeout_s: float = 60.0, dialer: Dialer = PLAIN
    ) -> None:
        self._channel: grpc.aio.Channel = dialer.channel(address, PeerRole.LORA_REGISTRY)
        self._stub = registry_pb2_grpc.RegistryServiceStub(self._channel)
        self._timeout_s = timeout_s
        self._register_timeout_s = register_timeout_s

    async def register(
        self, *, name: str, uri: str, base_model_digest: str, tenant: str = "", digest: str = ""
    ) -> Adapter:
        """Check an adapter's files and add a version; the name points to it from now on.

        Raises:
            InvalidAdapter: the files are not an adapter we serve, or not those of ``digest``; the message says why.
            NotFound: no such folder.
            BadRequest: name, tenant, URI or digest is malformed.
        """
        request = registry_pb2.RegisterAdapterRequest(
            tenant=tenant, name=name, base_model_digest=base_model_digest, uri=uri, digest=digest
        )
        async with translate_errors(peer=_PEER, lost=DependencyDown):
            answer = await self._stub.RegisterAdapter(request, timeout=self._register_timeout_s)
        return ADAPTER.from_pb(answer.adapter)

    async def list(self, tenant: str) -> tuple[Adapter, ...]:
        """Adapters that ``tenant`` may use, sorted by name."""
        request = registry_pb2.ListAdaptersRequest(tenant=tenant)
        async with translate_errors(peer=_PEER, lost=DependencyDown):
            answer = await self._stub.ListAdapters(request, timeout=self._timeout_s)
        return tuple(ADAPTER.from_pb(message) for message in answer.adapters)

    async def delete(self, tenant: str, name: str) -> None:
        """Take a name away.

        Raises:
            ModelNotFound: the tenant has no adapter of that name; adapters of every tenant are owned by "".
        """
        request = registry_pb2.DeleteAdapterRequest(tenant=tenant, name=name)
        async with translate_errors(peer=_PEER, lost=DependencyDown):
            await self._stub.DeleteAdapter(request, timeout=self._timeout_s)

    async def close(self) -> None:
        await self._channel.close()
