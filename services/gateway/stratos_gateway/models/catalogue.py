"""Model names -> digests, at the edge, once per request.

The base model is known from its files, adapters from the followed snapshot.  A name that is not known is an error,
never the base model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratos.common.errors import ModelNotFound
from stratos.core.adapter import BASE_MODEL, Adapter, AdapterRef
from stratos.core.files.embedding_files import EmbeddingConfig
from stratos_gateway.models.adapters import AdapterSource


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


class ModelCatalogue:
    """Names of the base model and of every tenant's adapters.

    Args:
        base: the base model.
        adapters: where adapters are looked up; ``None`` serves the base model alone.
    """

    def __init__(self, base: BaseModel, adapters: AdapterSource | None = None) -> None:
        self.base = base
        self._adapters = adapters

    async def resolve(self, tenant: str, name: str) -> ModelTarget:
        """The digests that a name stands for; raises like ``get``."""
        if name == self.base.name:
            return ModelTarget(name=name, model_digest=self.base.digest)
        adapter = await self._find(tenant, name)
        ref = AdapterRef(digest=adapter.digest, uri=adapter.uri)
        return ModelTarget(name=name, model_digest=self.base.digest, adapter=ref)

    async def list(self, tenant: str) -> list[dict[str, Any]]:
        """The tenant's models in OpenAI's shape, the base model first."""
        adapters = self._adapters.list(tenant) if self._adapters is not None else ()
        return [self._base_entry(), *(self._adapter_entry(adapter) for adapter in adapters if self._fits(adapter))]

    async def get(self, tenant: str, name: str) -> dict[str, Any]:
        """One model in OpenAI's shape.

        Raises:
            ModelNotFound: no such model, or one of another tenant.
            DependencyDown: the name is not known, and cannot be looked up now.
        """
        return self._base_entry() if name == self.base.name else self._adapter_entry(await self._find(tenant, name))

    async def _find(self, tenant: str, name: str) -> Adapter:
        adapter = await self._adapters.find(tenant, name) if self._adapters is not None else None
        if adapter is None or not self._fits(adapter):
            raise ModelNotFound(f"the model {name[:100]!r} does not exist", param="model")
        return adapter

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
