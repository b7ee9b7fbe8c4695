"""gRPC face of the registry: messages in, records inside, messages out."""

from __future__ import annotations

from typing import Any

from stratos.api.lora.v1 import registry_pb2, registry_pb2_grpc
from stratos.rpc.clients.registry import ADAPTER
from stratos_lora_registry.catalogue import AdapterCatalogue
from stratos_lora_registry.registrar import Registrar


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """Raises ``StratosError``; the server's interceptor puts it on the wire."""

    def __init__(self, catalogue: AdapterCatalogue, registrar: Registrar) -> None:
        self._catalogue = catalogue
        self._registrar = registrar

    async def RegisterAdapter(
        self, request: registry_pb2.RegisterAdapterRequest, context: Any
    ) -> registry_pb2.RegisterAdapterResponse:
        """Check and add a version."""
        adapter = await self._registrar.register(
            tenant=request.tenant,
            name=request.name,
            base_model_digest=request.base_model_digest,
            uri=request.uri,
            digest=request.digest,
        )
        return registry_pb2.RegisterAdapterResponse(adapter=ADAPTER.to_pb(adapter))

    async def ListAdapters(
        self, request: registry_pb2.ListAdaptersRequest, context: Any
    ) -> registry_pb2.ListAdaptersResponse:
        """A tenant's adapters."""
        adapters = await self._catalogue.list(request.tenant)
        return registry_pb2.ListAdaptersResponse(adapters=map(ADAPTER.to_pb, adapters))

    async def DeleteAdapter(
        self, request: registry_pb2.DeleteAdapterRequest, context: Any
    ) -> registry_pb2.DeleteAdapterResponse:
        """Take a name away."""
        await self._catalogue.delete(request.tenant, request.name)
        return registry_pb2.DeleteAdapterResponse()
