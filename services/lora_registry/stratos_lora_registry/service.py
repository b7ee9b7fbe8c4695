"""The registry as a service: Redis and object store, opened and closed together.

It starts, and stays ready, while Redis is down: callers then get a clear UNAVAILABLE instead of no answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import grpc.aio

from stratos.api.lora.v1 import registry_pb2, registry_pb2_grpc
from stratos.common.errors import DependencyDown
from stratos.rpc.serving.service import Service
from stratos.store.records.manifest import ManifestStore
from stratos.store.records.record_store import RecordStore
from stratos.store.redis import open_redis
from stratos.store.urls import open_store
from stratos_lora_registry.catalogue import AdapterCatalogue
from stratos_lora_registry.registrar import Registrar
from stratos_lora_registry.servicer import RegistryServicer
from stratos_lora_registry.settings import LoraRegistrySettings

_log = logging.getLogger(__name__)


class LoraRegistryService(Service):
    """Adapter catalogue over Redis and an object store."""

    name = "lora-registry"

    def __init__(self, settings: LoraRegistrySettings) -> None:
        self._redis = open_redis(settings.redis_url.get_secret_value())
        # One attempt: the caller that registers is told within a second that the store is down.
        self._store = open_store(settings.object_store, num_attempts=1)
        self._catalogue = AdapterCatalogue(RecordStore(self._redis, settings.records), ManifestStore(self._store))
        self._registrar = Registrar(self._catalogue, self._store, settings.registrar, time.time)

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        registry_pb2_grpc.add_RegistryServiceServicer_to_server(
            RegistryServicer(self._catalogue, self._registrar), server
        )
        return [registry_pb2.DESCRIPTOR.services_by_name["RegistryService"].full_name]

    async def warm_up(self) -> None:
        """Look whether Redis is there, and say so if not."""
        try:
            await self._catalogue.check()
        except DependencyDown as error:
            _log.warning("%s; adapters cannot be read or registered until it is back", error)

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, Any]]:
        """Keeper of the manifest in the object store."""
        return {"manifest": self._catalogue.keep_manifest_forever()}

    async def close(self) -> None:
        """Close both stores."""
        await self._store.close()
        await self._redis.aclose()
