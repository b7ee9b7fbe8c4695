"""Model names -> digests, at the edge, once per request.

Base models are known from their files, adapters from the followed snapshot; an adapter belongs to its base model.  A
name that is not known is an error, never another model.  A name that the plan or the key does not allow takes the way
of an unknown one, outages included.

    chat                    an alias, else a base model, else an adapter
    base@stable             an alias of revisions of ``base``, for whom may use either name
    base@3f9a12cd           one revision of ``base``; only its own workers answer
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from stratos.common.changed import record
from stratos.common.errors import BadRequest, ModelNotFound, PermissionDenied, StratosError, StreamGone
from stratos.core.adapter import BASE_MODEL, Adapter, AdapterRef
from stratos.core.tenant import Tenant
from stratos.store.models.alias_forms import pinned, split_name
from stratos.store.models.alias_record import AliasRecord
from stratos.store.models.choice_rules import AUTO
from stratos.text.output.chat_format import ChatFormat
from stratos_gateway.choices.source import NO_CHOICES, ChoiceSource
from stratos_gateway.models.adapters import NO_BLOCKS, AdapterSource, Blocks
from stratos_gateway.models.aliases import AliasChoice, AliasSource, NoAliases
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.shelf import ModelArrivals, no_arrivals

HIDDEN = "/"
"""A name that no adapter can have; it is looked up in the place of one that is not allowed."""


@record(frozen=True, slots=True, kw_only=True)
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

    @property
    def listed_names(self) -> tuple[str, ...]:
        """Names under which an operator's list may have it: an adapter's own, else that asked for and the model's."""
        return (self.name,) if self.owner is not None else (self.name, self.served.base.name)


@record(frozen=True, slots=True, kw_only=False)
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


class ModelCatalogue:
    """Names of the base models and of every tenant's adapters.

    Args:
        models: base models of this gateway.
        adapters: where adapters are looked up; ``None`` serves base models alone.
        blocks: what is refused for now.
        arrivals: waits a moment for a base model, or a revision, that was just added.
        aliases: further names of models.
        rng: draws for requests of aliases that stick to nothing.
        choices: rules of the model ``auto``, which is listed where there are some.
    """

    def __init__(
        self,
        models: ModelSet,
        adapters: AdapterSource | None = None,
        blocks: Blocks = NO_BLOCKS,
        arrivals: ModelArrivals = no_arrivals,
        aliases: AliasSource | None = None,
        rng: Random | None = None,
        choices: ChoiceSource = NO_CHOICES,
    ) -> None:
        self.models = models
        self._adapters = adapters
        self._blocks = blocks
        self._arrivals = arrivals
        self._choices = choices
        self.aliases = AliasChoice(aliases or NoAliases(), models, rng or Random())

    async def look_up(self, tenant: Tenant, name: object, session: str = "", begun: str = "") -> Lookup:
        """Look up what the field ``model`` of a body names, whatever is in it; raises nothing.

        Args:
            tenant: whose request it is.
            name: the field.
            session: what the client calls its session; requests of one for an alias go to one revision.
            begun: digest of the model that the answer began with, by the platform's record of it; a name of models
                then means that one, whatever it stands for by now.
        """
        try:
            if not isinstance(name, str):
                raise _unknown("")
            if (served := self._now(tenant, name, session, begun)) is not None:  # as nearly always
                return Lookup(served, ModelTarget(name=name, served=served))
            target = await self.resolve(tenant, name, session, begun)
        except StratosError as error:
            return Lookup(self.models.home, error)
        return Lookup(target.served, target)

    async def resolve(self, tenant: Tenant, name: str, session: str = "", begun: str = "") -> ModelTarget:
        """The digests that a name stands for; arguments as of ``look_up``.

        Raises:
            StratosError: like ``get``.
            DependencyDown: the model is recorded, and this gateway has not loaded it yet.
            StreamGone: the model of ``begun`` is served no more; no other one may go on with its tokens.
        """
        if (served := self._now(tenant, name, session, begun)) is not None:
            return ModelTarget(name=name, served=served)
        try:
            adapter, served = await self._find(tenant, name)
        except ModelNotFound:  # its adapters were looked for in the store: a model that was added is known by now
            if _may_use(tenant, name):
                await self._arrive(name, begun)
            if (arrived := self._now(tenant, name, session, begun)) is not None:
                return ModelTarget(name=name, served=arrived)
            if begun and self._names_models(tenant, name):
                raise StreamGone("the revision of the model that this stream began with is served no more") from None
            raise
        ref = AdapterRef(digest=adapter.digest, uri=adapter.uri)
        return ModelTarget(name=name, served=served, adapter=ref, owner=adapter.tenant)

    async def _arrive(self, name: str, begun: str) -> None:
        """Wait a moment for what was just added: the revision of ``begun``, an alias' targets, or a model."""
        for model, digits in [("", begun)] if begun else self.aliases.meant(name):
            await self._arrivals(model, digits)

    async def revision(self, digest: str) -> ServedModel | None:
        """The revision of a digest, where it is served here, or comes within a moment.

        Raises:
            DependencyDown: it is recorded, and this gateway has not loaded it yet.
        """
        if (served := self.models.of_digest(digest)) is None:
            await self._arrivals("", digest)
            served = self.models.of_digest(digest)
        return served

    def refusal(self, target: ModelTarget) -> PermissionDenied | None:
        """Why what runs on a target may not go on: it was blocked since."""
        blocks, name, base_name = self._blocks, target.name, target.served.base.name
        if blocks.is_model_blocked(base_name):
            return _refused(name)
        if target.owner is not None:
            return _refused(name) if blocks.is_adapter_blocked(target.owner, name) else None
        return _refused(name) if name != base_name and blocks.is_model_blocked(name) else None

    async def list(self, tenant: Tenant) -> list[dict[str, Any]]:
        """The tenant's models in OpenAI's shape: base models, aliases, adapters; without those that are refused."""
        blocks, adapters = self._blocks, () if self._adapters is None else self._adapters.list(tenant.name)
        own = [
            _base_entry(served)
            for served in map(self._shown, self.models)
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
        named = self._aliases_of(tenant)
        for entry in own:
            entry["aliases"] = [alias["id"] for alias in named if alias["root"] == entry["id"]]
        return [*own, *named, *self._auto_of(tenant)] + [_adapter_entry(adapter, served) for adapter, served in shown]

    def _shown(self, served: ServedModel) -> ServedModel:
        """The revision of a name that is listed: the one that most sessions get."""
        alias = self.aliases.source.find(served.base.name)
        arms = [] if alias is None else self.aliases.open_now(alias)
        return max(arms, key=lambda arm: arm[0].weight)[1] if arms else served

    def _aliases_of(self, tenant: Tenant) -> Sequence[dict[str, Any]]:
        """Entries of the aliases that have names of their own."""
        entries = (
            self._alias_entry(alias)
            for alias in self.aliases.source.list()
            if _may_use(tenant, alias.name)
            and self.models.get(alias.name) is None
            and not self._blocks.is_model_blocked(alias.name)
        )
        return [entry for entry in entries if entry is not None and not self._blocks.is_model_blocked(entry["root"])]

    def _auto_of(self, tenant: Tenant) -> Sequence[dict[str, Any]]:
        """The entry of ``auto``, where rules choose for the tenant among models that it may use."""
        rules = self._choices.find(tenant.name)
        chosen = [] if rules is None else [name for name in sorted(rules.models) if _may_use(tenant, name)]
        return [_auto_entry(chosen)] if chosen else []

    def _alias_entry(self, alias: AliasRecord) -> dict[str, Any] | None:
        """Entry of an alias: where most sessions go now, and what was set; ``None`` where a request finds nothing."""
        if not (arms := self.aliases.open_now(alias)):
            return None
        _, most = max(arms, key=lambda arm: arm[0].weight)
        targets = [
            {"model": served.base.name, "revision": served.base.digest, "weight": target.weight}
            for target, served in self.aliases.arms(alias)
        ]
        base = most.base
        named = {"id": alias.name, "created": alias.created_unix_s, "root": base.name, "parent": base.name}
        return {**_base_entry(most), **named, "targets": targets}

    async def get(self, tenant: Tenant, name: str) -> dict[str, Any]:
        """One model in OpenAI's shape.

        Raises:
            ModelNotFound: no such model, one of another tenant, or one that the plan or the key does not allow.
            PermissionDenied: it is blocked.
            DependencyDown: the name is not known, and cannot be looked up now.
        """
        if (served := self._base(tenant, name)) is not None:
            alias = None if name == served.base.name else self.aliases.source.find(name)
            entry = None if alias is None else self._alias_entry(alias)
            return entry or _base_entry(self._shown(served) if name == served.base.name else served)
        if name == AUTO and (entries := self._auto_of(tenant)):
            return entries[0]
        adapter, served = await self._find(tenant, name)
        return _adapter_entry(adapter, served)

    def _base(self, tenant: Tenant, name: str, session: str = "") -> ServedModel | None:
        if not _may_use(tenant, name):
            return None
        if (alias := self.aliases.source.find(name)) is not None:
            served = self.aliases.pick(alias, tenant.id, session)
            if served is not None and self._is_hidden(tenant, name, served):
                return None
        elif (pin := pinned(name)) is not None:
            served = self._pinned(*pin)
        else:
            served = self.models.get(name)
        if served is not None:
            self._check_open(name, served)
        return served

    def _now(self, tenant: Tenant, name: str, session: str, begun: str) -> ServedModel | None:
        return self._begun(tenant, name, begun) if begun else self._base(tenant, name, session)

    def _begun(self, tenant: Tenant, name: str, digest: str) -> ServedModel | None:
        """The revision of an answer that began under a name of models; ``None`` where the name is none, or that
        revision is not served here."""
        served = self.models.of_digest(digest) if self._names_models(tenant, name) else None
        if served is None or self._is_hidden(tenant, name, served):
            return None
        self._check_open(name, served)
        return served

    def _names_models(self, tenant: Tenant, name: str) -> bool:
        """Whether the tenant may use a name, and it is none of an adapter."""
        is_one = pinned(name) is not None or self.models.get(name) is not None
        return _may_use(tenant, name) and (is_one or self.aliases.source.find(name) is not None)

    def _is_hidden(self, tenant: Tenant, name: str, served: ServedModel) -> bool:
        """Who may use a model may use its tags, whatever else they were made to say, but not the other model."""
        return not tenant.may_use(name) and served.base.name != split_name(name)[0]

    def _check_open(self, name: str, served: ServedModel) -> None:
        """Refuse what is blocked, under the name that was asked for or its own."""
        base_name = served.base.name
        if self._blocks.is_model_blocked(name) or (name != base_name and self._blocks.is_model_blocked(base_name)):
            raise _refused(name)

    def _pinned(self, name: str, digits: str) -> ServedModel | None:
        found = self.models.of_digits(name, digits)
        if len(found) > 1:
            text = f"several revisions of {name[:100]!r} begin with {digits}: give more digits"
            raise BadRequest(text, param="model")
        return found[0] if found else None

    def _lacking(self, tenant: Tenant, name: str) -> ModelNotFound:
        """Why a name stands for nothing."""
        alias = self.aliases.source.find(name) if _may_use(tenant, name) else None
        if alias is None:
            return _unknown(name)
        told = sorted({target.model for target in alias.targets})
        text = f"the alias {name[:100]!r} stands for {', '.join(told)}, of which no such revision is served"
        return ModelNotFound(text, param="model")

    async def _find(self, tenant: Tenant, name: str) -> tuple[Adapter, ServedModel]:
        sought = name if tenant.may_use(name) and self.models.get(name) is None else HIDDEN
        adapter = await self._adapters.find(tenant.name, sought) if self._adapters is not None else None
        if adapter is not None and self._base_of(adapter) is None:
            await self._arrivals("", adapter.base_model_digest)
        served = None if adapter is None else self._base_of(adapter)
        if adapter is None or served is None:
            raise self._lacking(tenant, name)
        if self._is_blocked(adapter) or self._blocks.is_model_blocked(served.base.name):
            raise _refused(name)
        return adapter, served

    def _is_blocked(self, adapter: Adapter) -> bool:
        return self._blocks.is_adapter_blocked(adapter.tenant, adapter.name)

    def _base_of(self, adapter: Adapter) -> ServedModel | None:
        """The base model of an adapter; ``None`` where this gateway has another one, or its name is hidden."""
        if self.models.get(adapter.name) is not None or self.aliases.source.find(adapter.name) is not None:
            return None
        return self.models.of_digest(adapter.base_model_digest)


def _may_use(tenant: Tenant, name: str) -> bool:
    """Whether a tenant and its key may use a name, or the model that is in front of its @."""
    if tenant.may_use(name):
        return True
    model, tag = split_name(name)
    return bool(tag) and tenant.may_use(model)


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


def _auto_entry(chosen: Sequence[str]) -> dict[str, Any]:
    return {"id": AUTO, "object": "model", "created": 0, "owned_by": "stratos", "parent": None, "chosen": list(chosen)}


def _forms(chat: ChatFormat) -> dict[str, Any]:
    """How a model that chats writes calls and reasoning."""
    tags = chat.reasoning
    return {
        "call_syntax": chat.syntax.name if chat.is_native else "generic",
        "reasoning_tags": None if tags is None else [tags.begin, tags.end],
    }


def _unknown(name: str) -> ModelNotFound:
    return ModelNotFound(f"the model {name[:100]!r} does not exist", param="model")


def _refused(name: str) -> PermissionDenied:
    return PermissionDenied(f"the model {name[:100]!r} is not served now, by decision of the operator", param="model")
