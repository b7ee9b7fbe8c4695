"""Model names -> digests, at the edge, once per request.

Base models are known from their files, adapters from the followed snapshot; an adapter belongs to its base model.  A
name that is not known is an error, never another model.  A name that the plan or the key does not allow takes the way
of an unknown one, outages included.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import ModelNotFound, PermissionDenied, StratosError
from stratos.core.adapter import BASE_MODEL, Adapter, AdapterRef
from stratos.core.ledger.usage import MeterTag, cost_tags
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos.text.output.chat_format import ChatFormat
from stratos_gateway.models.adapters import NO_BLOCKS, AdapterSource, Blocks
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel

HIDDEN = "/"
"""A name that no adapter can have; it is looked up in the place of one that is not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTarget:
    """Model and adapter that a request runs on."""

    name: str
    """Name that the client uses."""
    served: ServedModel
    """The base model: its tokenizer, template and limits."""
    adapter: AdapterRef = BASE_MODEL
    owner: str | None = None
    """Owner of the adapter, "" for one of all tenants; ``None`` for the base model."""

    @property
    def model_digest(self) -> str:
        """SHA-256 (hex) of the base model."""
        return self.served.base.digest


@dataclass(frozen=True, slots=True)
class Lookup:
    """Answer to what a request names, before its body is checked: a body is told its own errors first."""

    served: ServedModel
    """The base model that the body is checked for; the gateway's first one where the name stands for nothing."""
    found: ModelTarget | StratosError

    @property
    def target(self) -> ModelTarget:
        """Target of the request; raises like ``ModelCatalogue.resolve``."""
        if isinstance(self.found, StratosError):
            raise self.found
        return self.found


async def no_arrivals(name: str) -> None:
    """No model comes while this gateway runs."""


class ModelCatalogue:
    """Names of the base models and of every tenant's adapters.

    Args:
        models: base models of this gateway.
        adapters: where adapters are looked up; ``None`` serves base models alone.
        blocks: what is refused for now.
        arrivals: waits a moment for a base model that was just added.
    """

    def __init__(
        self,
        models: ModelSet,
        adapters: AdapterSource | None = None,
        blocks: Blocks = NO_BLOCKS,
        arrivals: Callable[[str], Awaitable[None]] = no_arrivals,
    ) -> None:
        self.models = models
        self._adapters = adapters
        self._blocks = blocks
        self._arrivals = arrivals

    async def look_up(self, tenant: Tenant, name: object) -> Lookup:
        """Look up what the field ``model`` of a body names, whatever is in it; raises nothing."""
        try:
            if not isinstance(name, str):
                raise _unknown("")
            target = await self.resolve(tenant, name)
        except StratosError as error:
            return Lookup(self.models.home, error)
        return Lookup(target.served, target)

    async def resolve(self, tenant: Tenant, name: str) -> ModelTarget:
        """The digests that a name stands for; raises like ``get``, and ``DependencyDown`` for a model that is recorded
        and that this gateway has not loaded yet."""
        if (served := self._base(tenant, name)) is not None:
            return ModelTarget(name=name, served=served)
        try:
            adapter, served = await self._find(tenant, name)
        except ModelNotFound:  # its adapters were looked for in the store: a model that was added is known by now
            if tenant.may_use(name):
                await self._arrivals(name)
            if (arrived := self._base(tenant, name)) is None:
                raise
            return ModelTarget(name=name, served=arrived)
        ref = AdapterRef(digest=adapter.digest, uri=adapter.uri)
        return ModelTarget(name=name, served=served, adapter=ref, owner=adapter.tenant)

    def refusal(self, target: ModelTarget) -> PermissionDenied | None:
        """Why what runs on a target may not go on: it was blocked since."""
        is_blocked = self._blocks.is_model_blocked(target.served.base.name) or (
            target.owner is not None and self._blocks.is_adapter_blocked(target.owner, target.name)
        )
        return _refused(target.name) if is_blocked else None

    async def list(self, tenant: Tenant) -> list[dict[str, Any]]:
        """The tenant's models in OpenAI's shape, base models first; without those that are refused."""
        blocks, adapters = self._blocks, () if self._adapters is None else self._adapters.list(tenant.name)
        own = [
            _base_entry(served)
            for served in self.models
            if tenant.may_use(served.base.name) and not blocks.is_model_blocked(served.base.name)
        ]
        shown = (
            (adapter, served)
            for adapter in adapters
            if tenant.may_use(adapter.name)
            and not self._is_blocked(adapter)
            and (served := self._base_of(adapter)) is not None
            and not blocks.is_model_blocked(served.base.name)
        )
        return own + [_adapter_entry(adapter, served) for adapter, served in shown]

    async def get(self, tenant: Tenant, name: str) -> dict[str, Any]:
        """One model in OpenAI's shape.

        Raises:
            ModelNotFound: no such model, one of another tenant, or one that the plan or the key does not allow.
            PermissionDenied: it is blocked.
            DependencyDown: the name is not known, and cannot be looked up now.
        """
        if (served := self._base(tenant, name)) is not None:
            return _base_entry(served)
        adapter, served = await self._find(tenant, name)
        return _adapter_entry(adapter, served)

    def _base(self, tenant: Tenant, name: str) -> ServedModel | None:
        served = self.models.get(name)
        if served is None or not tenant.may_use(name):
            return None
        if self._blocks.is_model_blocked(name):
            raise _refused(name)
        return served

    async def _find(self, tenant: Tenant, name: str) -> tuple[Adapter, ServedModel]:
        sought = name if tenant.may_use(name) and self.models.get(name) is None else HIDDEN
        adapter = await self._adapters.find(tenant.name, sought) if self._adapters is not None else None
        served = None if adapter is None else self._base_of(adapter)
        if adapter is None or served is None:
            raise _unknown(name)
        if self._is_blocked(adapter) or self._blocks.is_model_blocked(served.base.name):
            raise _refused(name)
        return adapter, served

    def _is_blocked(self, adapter: Adapter) -> bool:
        return self._blocks.is_adapter_blocked(adapter.tenant, adapter.name)

    def _base_of(self, adapter: Adapter) -> ServedModel | None:
        """The base model of an adapter; ``None`` where this gateway has another one, or a model hides its name."""
        if self.models.get(adapter.name) is not None:
            return None
        return self.models.of_digest(adapter.base_model_digest)


def _base_entry(served: ServedModel) -> dict[str, Any]:
    base = served.base
    return {
        "id": base.name,
        "object": "model",
        "created": base.created_unix_s,
        "owned_by": "stratos",
        "root": base.name,
        "parent": None,
        "revision": base.digest,
        "max_model_len": base.max_model_len,
        "quantization": base.quantization or None,
        **base.describe(),
        **(_forms(served.chat) if base.can_chat and base.can_generate else {}),
    }


def _forms(chat: ChatFormat) -> dict[str, Any]:
    """How a model that chats writes calls and reasoning."""
    tags = chat.reasoning
    return {
        "call_syntax": chat.syntax.name if chat.is_native else "generic",
        "reasoning_tags": None if tags is None else [tags.begin, tags.end],
    }


def _adapter_entry(adapter: Adapter, served: ServedModel) -> dict[str, Any]:
    return {
        **_base_entry(served),
        "id": adapter.name,
        "created": adapter.created_unix_s,
        "owned_by": adapter.tenant or "stratos",
        "root": adapter.digest,
        "parent": served.base.name,
        "revision": adapter.digest,
    }


def _unknown(name: str) -> ModelNotFound:
    return ModelNotFound(f"the model {name[:100]!r} does not exist", param="model")


def _refused(name: str) -> PermissionDenied:
    return PermissionDenied(f"the model {name[:100]!r} is not served now, by decision of the operator", param="model")


NO_METADATA: Mapping[str, str] = {}


def meter_tag(
    tenant: Tenant,
    target: ModelTarget,
    route: str,
    trace: TraceContext,
    arrived_unix_ms: int,
    metadata: Mapping[str, str] = NO_METADATA,
) -> MeterTag:
    """The tag of a request.

    Args:
        tenant: whose key it carries.
        target: what it runs on.
        route: of its dialect, or "embedding".
        trace: with the id that the client knows.
        arrived_unix_ms: now, by this gateway's clock.
        metadata: of the request, of which short texts are cost tags.
    """
    base = target.served.base
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
