"""Model names -> digests, at the edge, once per request.

The base model is known from its files, adapters from the followed snapshot.  A name that is not known is an error,
never the base model.  A name that the plan or the key does not allow takes the way of an unknown one, outages included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import ModelNotFound, PermissionDenied
from stratos.core.adapter import BASE_MODEL, Adapter, AdapterRef
from stratos.core.files.embedding_files import EmbeddingConfig
from stratos.core.ledger.usage import MeterTag, cost_tags
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos_gateway.models.adapters import NO_BLOCKS, AdapterSource, Blocks

HIDDEN = "/"
"""A name that no adapter can have; it is looked up in the place of one that is not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTarget:
    """Model and adapter that a request runs on."""

    name: str
    model_digest: str
    adapter: AdapterRef = BASE_MODEL
    owner: str | None = None
    """Owner of the adapter, "" for one of all tenants; ``None`` for the base model."""


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
    can_score: bool = False
    embedding: EmbeddingConfig | None = None
    """How it embeds; ``None`` when it does not."""
    size: str = ""
    """Row of the plans' prices."""
    quantization: str = ""
    """Scheme of its weights; empty: floats."""

    def describe(self) -> dict[str, Any]:
        """Capabilities, for a list of models; adapters can do the same."""
        routes = {
            "chat.completions": self.can_chat and self.can_generate,
            "completions": self.can_generate,
            "embeddings": self.embedding is not None,
            "score": self.can_score,
            "rerank": self.can_score,
        }
        sizes = {} if self.embedding is None else {"embedding_dimensions": self.embedding.size}
        return {"capabilities": [name for name, is_there in routes.items() if is_there], **sizes}


class ModelCatalogue:
    """Names of the base model and of every tenant's adapters.

    Args:
        base: the base model.
        adapters: where adapters are looked up; ``None`` serves the base model alone.
        blocks: what is refused for now.
    """

    def __init__(self, base: BaseModel, adapters: AdapterSource | None = None, blocks: Blocks = NO_BLOCKS) -> None:
        self.base = base
        self._adapters = adapters
        self._blocks = blocks

    async def resolve(self, tenant: Tenant, name: str) -> ModelTarget:
        """The digests that a name stands for; raises like ``get``."""
        if self._is_base(tenant, name):
            return ModelTarget(name=name, model_digest=self.base.digest)
        adapter = await self._find(tenant, name)
        ref = AdapterRef(digest=adapter.digest, uri=adapter.uri)
        return ModelTarget(name=name, model_digest=self.base.digest, adapter=ref, owner=adapter.tenant)

    def refusal(self, target: ModelTarget) -> PermissionDenied | None:
        """Why what runs on a target may not go on: it was blocked since."""
        is_blocked = self._blocks.is_model_blocked(self.base.name) or (
            target.owner is not None and self._blocks.is_adapter_blocked(target.owner, target.name)
        )
        return _refused(target.name) if is_blocked else None

    async def list(self, tenant: Tenant) -> list[dict[str, Any]]:
        """The tenant's models in OpenAI's shape, the base model first; without those that are refused."""
        base, blocks = self.base.name, self._blocks
        own = [self._base_entry()] if tenant.may_use(base) and not blocks.is_model_blocked(base) else []
        if blocks.is_model_blocked(base) or self._adapters is None:
            return own
        return own + [
            self._adapter_entry(adapter)
            for adapter in self._adapters.list(tenant.name)
            if self._fits(adapter) and tenant.may_use(adapter.name) and not self._is_blocked(adapter)
        ]

    async def get(self, tenant: Tenant, name: str) -> dict[str, Any]:
        """One model in OpenAI's shape.

        Raises:
            ModelNotFound: no such model, one of another tenant, or one that the plan or the key does not allow.
            PermissionDenied: it is blocked.
            DependencyDown: the name is not known, and cannot be looked up now.
        """
        if self._is_base(tenant, name):
            return self._base_entry()
        return self._adapter_entry(await self._find(tenant, name))

    def _is_base(self, tenant: Tenant, name: str) -> bool:
        if name != self.base.name or not tenant.may_use(name):
            return False
        if self._blocks.is_model_blocked(name):
            raise _refused(name)
        return True

    async def _find(self, tenant: Tenant, name: str) -> Adapter:
        sought = name if tenant.may_use(name) and name != self.base.name else HIDDEN
        adapter = await self._adapters.find(tenant.name, sought) if self._adapters is not None else None
        if adapter is None or not self._fits(adapter):
            raise ModelNotFound(f"the model {name[:100]!r} does not exist", param="model")
        if self._is_blocked(adapter) or self._blocks.is_model_blocked(self.base.name):
            raise _refused(name)
        return adapter

    def _is_blocked(self, adapter: Adapter) -> bool:
        return self._blocks.is_adapter_blocked(adapter.tenant, adapter.name)

    def _fits(self, adapter: Adapter) -> bool:
        """Whether an adapter is one of this gateway's base model, and not hidden by its name."""
        return adapter.base_model_digest == self.base.digest and adapter.name != self.base.name

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
            "quantization": base.quantization or None,
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


def _refused(name: str) -> PermissionDenied:
    return PermissionDenied(f"the model {name[:100]!r} is not served now, by decision of the operator", param="model")


NO_METADATA: Mapping[str, str] = {}


def meter_tag(
    base: BaseModel,
    tenant: Tenant,
    target: ModelTarget,
    route: str,
    trace: TraceContext,
    arrived_unix_ms: int,
    metadata: Mapping[str, str] = NO_METADATA,
) -> MeterTag:
    """The tag of a request.

    Args:
        base: of this gateway.
        tenant: whose key it carries.
        target: what it runs on.
        route: of its dialect, or "embedding".
        trace: with the id that the client knows.
        arrived_unix_ms: now, by this gateway's clock.
        metadata: of the request, of which short texts are cost tags.
    """
    return MeterTag(
        key_id=tenant.key_id,
        model=base.name,
        model_size=base.size,
        adapter=target.name if target.adapter.digest else "",
        route=route,
        http_request_id=trace.http_request_id,
        arrived_unix_ms=arrived_unix_ms,
        cost_tags=cost_tags(metadata),
    )
