"""Calls to the lora-registry, for the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from stratos.api.lora.v1 import registry_pb2, registry_pb2_grpc
from stratos.common.errors import DependencyDown
from stratos.rpc.client import channel, translate_errors

TIMEOUT_S = 60.0
"""The registry reads an adapter's whole content when it registers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterView:
    """One registered adapter."""

    tenant: str
    name: str
    uri: str
    digest: str
    base_model_digest: str
    rank: int
    target_modules: tuple[str, ...]
    num_bytes: int


class RegistryClient:
    """One channel to the registry; use ``open_registry``."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    async def register(self, *, tenant: str, name: str, base_model_digest: str, uri: str) -> AdapterView:
        """Add an adapter whose files are in the object store; the same content again is no change."""
        request = registry_pb2.RegisterAdapterRequest(
            tenant=tenant, name=name, base_model_digest=base_model_digest, uri=uri
        )
        async with _errors():
            answer = await self._stub.RegisterAdapter(request, timeout=TIMEOUT_S)
        return _view(answer.adapter)

    async def list(self, tenant: str) -> list[AdapterView]:
        """The adapters a tenant may use."""
        async with _errors():
            answer = await self._stub.ListAdapters(registry_pb2.ListAdaptersRequest(tenant=tenant), timeout=TIMEOUT_S)
        return [_view(adapter) for adapter in answer.adapters]

    async def delete(self, *, tenant: str, name: str) -> None:
        """Take a name away."""
        async with _errors():
            await self._stub.DeleteAdapter(
                registry_pb2.DeleteAdapterRequest(tenant=tenant, name=name), timeout=TIMEOUT_S
            )


@asynccontextmanager
async def open_registry(address: str) -> AsyncIterator[RegistryClient]:
    """A client whose channel is closed at the end."""
    async with channel(address) as peer:
        yield RegistryClient(registry_pb2_grpc.RegistryServiceStub(peer))


def _errors() -> Any:
    return translate_errors(peer="the lora-registry", lost=DependencyDown)


def _view(adapter: registry_pb2.Adapter) -> AdapterView:
    return AdapterView(
        tenant=adapter.tenant,
        name=adapter.name,
        uri=adapter.uri,
        digest=adapter.digest,
        base_model_digest=adapter.base_model_digest,
        rank=adapter.rank,
        target_modules=tuple(adapter.target_modules),
        num_bytes=adapter.num_bytes,
    )
