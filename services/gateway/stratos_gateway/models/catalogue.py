"""Model names -> digests, at the edge, once per request.

The base model is known from its files.  Adapters come from the registry, tenant by tenant; while it does not
answer, the last good list of the tenant goes on serving.  A name that is not known is an error, never the
base model.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown, ModelNotFound, Retryable
from stratos.core.adapter import BASE_MODEL, Adapter, AdapterRef
from stratos.core.files.embedding_files import EmbeddingConfig

MAX_TENANTS = 4096
"""Tenants whose lists are held; the least recently used one goes."""
REGISTRY_TIMEOUT_S = 1.0


class AdapterSource(Protocol):
    """The registry, as far as the gateway needs it; ``stratos.rpc.clients.registry.RegistryClient`` is one."""

    async def list(self, tenant: str) -> Sequence[Adapter]:
        """All adapters a tenant may use."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTarget:
    """What a request runs on."""

    name: str
    model_digest: str
    adapter: AdapterRef = BASE_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """Facts of the one base model of this gateway."""

    name: str
    digest: str
    max_model_len: int
    vocab_size: int
    created_unix_s: int
    can_generate: bool = True
    can_chat: bool = True
    embedding: EmbeddingConfig | None = None
    """How it embeds; ``None`` when it does not."""

    def describe(self) -> dict[str, Any]:
        """What it can do, for a list of models; adapters can do the same."""
        routes = {
            "chat.completions": self.can_chat and self.can_generate,
            "completions": self.can_generate,
            "embeddings": self.embedding is not None,
        }
        sizes = {} if self.embedding is None else {"embedding_dimensions": self.embedding.size}
        return {"capabilities": [name for name, is_there in routes.items() if is_there], **sizes}


@dataclass(slots=True)
class _Snapshot:
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    checked_s: float = float("-inf")
    """When the registry was last asked, with or without success."""
    is_good: bool = False
    """The last question was answered."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ModelCatalogue:
    """Names of the base model and of every tenant's adapters.

    Args:
        base: the base model.
        registry: source of adapters; ``None`` serves the base model alone.
        clock: age of the lists.
        refresh_s: age up to which a list is used without asking.
    """

    def __init__(self, base: BaseModel, registry: AdapterSource | None, clock: Clock, refresh_s: float) -> None:
        self.base = base
        self._registry = registry
        self._clock = clock
        self._refresh_s = refresh_s
        self._snapshots: OrderedDict[str, _Snapshot] = OrderedDict()

    async def resolve(self, tenant: str, name: str) -> ModelTarget:
        """The digests that a name stands for.

        Raises:
            ModelNotFound: no such model, or one of another tenant.
            DependencyDown: the registry does not answer, and the tenant's last list does not have the name.
        """
        if name == self.base.name:
            return ModelTarget(name=name, model_digest=self.base.digest)
        snapshot = await self._fresh(tenant)
        adapter = snapshot.adapters.get(name)
        if adapter is not None:
            ref = AdapterRef(digest=adapter.digest, uri=adapter.uri)
            return ModelTarget(name=name, model_digest=self.base.digest, adapter=ref)
        if not snapshot.is_good:
            raise DependencyDown("the adapter registry does not answer, so this model name cannot be looked up now")
        raise ModelNotFound(f"the model {name[:100]!r} does not exist", param="model")

    async def list(self, tenant: str) -> list[dict[str, Any]]:
        """The tenant's models in OpenAI's shape, the base model first."""
        snapshot = await self._fresh(tenant)
        adapters = sorted(snapshot.adapters.values(), key=lambda adapter: adapter.name)
        return [self._base_entry(), *(self._adapter_entry(adapter) for adapter in adapters)]

    async def get(self, tenant: str, name: str) -> dict[str, Any]:
        """One model in OpenAI's shape; raises like ``resolve``."""
        await self.resolve(tenant, name)
        return next(entry for entry in await self.list(tenant) if entry["id"] == name)

    async def _fresh(self, tenant: str) -> _Snapshot:
        snapshot = self._snapshots.setdefault(tenant, _Snapshot())
        self._snapshots.move_to_end(tenant)
        while len(self._snapshots) > MAX_TENANTS:
            self._snapshots.popitem(last=False)
        async with snapshot.lock:
            if self._clock.now() - snapshot.checked_s >= self._refresh_s:
                await self._refresh(tenant, snapshot)
        return snapshot

    async def _refresh(self, tenant: str, snapshot: _Snapshot) -> None:
        try:
            async with asyncio.timeout(REGISTRY_TIMEOUT_S):
                adapters = await self._registry.list(tenant) if self._registry else ()
        except (Retryable, TimeoutError):
            snapshot.is_good = False
        else:
            own = [a for a in adapters if a.base_model_digest == self.base.digest and a.name != self.base.name]
            snapshot.adapters = {adapter.name: adapter for adapter in own}
            snapshot.is_good = True
        snapshot.checked_s = self._clock.now()

    def _base_entry(self) -> dict[str, Any]:
        base = self.base
        return {
            "id": base.name,
            "object": "model",
            "created": base.created_unix_s,
            "owned_by": "stratos",
            "root": base.name,
            "parent": None,
            "max_model_len": base.max_model_len,
            **base.describe(),
        }

    def _adapter_entry(self, adapter: Adapter) -> dict[str, Any]:
        return {
            **self._base_entry(),
            "id": adapter.name,
            "created": adapter.created_unix_s,
            "root": adapter.digest,
            "parent": self.base.name,
        }
