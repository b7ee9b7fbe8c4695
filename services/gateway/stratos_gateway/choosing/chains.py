"""Models that may answer a request which names several, or leaves the choice to rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratos.common.errors import ModelNotFound
from stratos.core.tenant import Tenant
from stratos_gateway.answering.chain import FIELD, ChainSource, FallbackChain, chain_of, check_alone
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.choosing.chooser import DEFAULT, OFF, ModelChooser, Resolve
from stratos_gateway.metrics import GatewayMetrics


class Chains(ChainSource):
    """Belongs to the event loop.

    Args:
        resolve: names of models.
        chooser: of models for ``auto``.
        metrics: count the answers of models that rules chose.
    """

    def __init__(self, resolve: Resolve, chooser: ModelChooser, metrics: GatewayMetrics) -> None:
        self._resolve = resolve
        self._chooser = chooser
        self._metrics = metrics

    def names_several(self, tenant: Tenant, body: Mapping[str, Any]) -> bool:
        """Whether it has the field ``models``, or names ``auto``, which has rules."""
        return FIELD in body or self._chooser.is_asked(tenant, body)

    async def chain(self, request: ClientRequest[Any], body: Mapping[str, Any]) -> FallbackChain:
        """The chain of a body, of which every name is one that its key may use.

        Raises:
            BadRequest: it is none, or cannot be combined with something else in the request.
            ModelNotFound: a name is none that the key may use, or rules find no such name.
        """
        return await (self._named(request, body) if FIELD in body else self._chosen(request, body))

    async def _named(self, request: ClientRequest[Any], body: Mapping[str, Any]) -> FallbackChain:
        chain = chain_of(body)
        check_alone(body, FIELD)
        for name in chain.names:
            try:
                await self._resolve(request.tenant, name)
            except ModelNotFound as error:
                error.param = FIELD
                raise
        return chain

    async def _chosen(self, request: ClientRequest[Any], body: Mapping[str, Any]) -> FallbackChain:
        check_alone(body, "model")
        choice = await self._chooser.choose(request.tenant, body)
        reason = choice.rule if choice.rule in (OFF, DEFAULT) else "session" if choice.is_kept else "rule"
        return FallbackChain(tuple(choice.names), rule=choice.rule, reason=reason, count=self._metrics.note_choice)
