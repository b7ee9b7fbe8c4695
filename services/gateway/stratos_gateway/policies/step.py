"""The tenant's content policy around a request: it is looked up, lets the input in, and stands by for the output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import BadRequest, ContentCheckDown
from stratos.core.tenancy.content import ContentPolicy
from stratos.core.tenant import Tenant
from stratos.text.filtering.rules import Rules
from stratos_gateway.answering.contract import Step
from stratos_gateway.answering.output import ChunkOutput, Chunks
from stratos_gateway.answering.request import ClientRequest, ContentScreen
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.policies.classifier import Classifier
from stratos_gateway.policies.output import ScreenedOutput
from stratos_gateway.policies.screen import Screen
from stratos_gateway.policies.source import ContentSource


@dataclass(frozen=True, slots=True)
class RequestScreen(ContentScreen):
    """One request's texts and its tenant's policy."""

    screen: Screen

    async def check_input(self, texts: Sequence[str], param: str) -> None:
        """Refuse what the policy does not let in."""
        await self.screen.check_input(texts, param)

    async def verdict(self, text: str) -> Mapping[str, bool]:
        """Rules of the policy, and whether a text breaks each."""
        return await self.screen.verdict(text)

    def shown(self, output: ChunkOutput) -> Chunks:
        """The output as the policy lets it out."""
        return ScreenedOutput(output, self.screen) if self.screen.checks_output else output


class PolicyStep(Step):
    """Finds the policy; a request whose policy is not known is refused before it counts for any limit.

    Compiled rules are kept while their policy stays as it is.

    Args:
        source: where policies are.
        classifier: asked by those that want it.
        resident: asked in its place for tenants whose texts never leave the platform.
        metrics: counts hits.
    """

    def __init__(
        self, source: ContentSource, classifier: Classifier, resident: Classifier, metrics: GatewayMetrics
    ) -> None:
        self._source = source
        self._classifier = classifier
        self._resident = resident
        self._metrics = metrics
        self._compiled: dict[str, tuple[ContentPolicy, Rules]] = {}

    def around(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[None] | None:
        """Give the request its screen, where its plan names a policy; raises ``ContentCheckDown``."""
        name = request.tenant.plan.content_policy
        return self._screened(request, name) if name else None

    @asynccontextmanager
    async def _screened(self, request: ClientRequest[Any], name: str) -> AsyncIterator[None]:
        request.screen = RequestScreen(await self._screen(request.tenant, name))
        yield

    async def _screen(self, tenant: Tenant, name: str) -> Screen:
        """The screen of a tenant's request.

        Raises:
            ContentCheckDown: the policy is not known here, or cannot be used by this build.
        """
        policy = self._source.policy(name)
        if policy is None:
            raise ContentCheckDown(f"content policy {name!r} of tenant {tenant.name} is not known")
        return Screen(
            tenant=tenant.name,
            policy=policy,
            rules=await self._rules(name, policy),
            classifier=self._resident if tenant.plan.resident_only else self._classifier,
            metrics=self._metrics,
        )

    async def _rules(self, name: str, policy: ContentPolicy) -> Rules:
        known = self._compiled.get(name)
        if known is not None and known[0] is policy:
            return known[1]
        try:
            rules = await asyncio.to_thread(Rules.of, policy)
        except BadRequest as error:
            raise ContentCheckDown(f"content policy {name!r} cannot be used: {error.message}") from None
        self._compiled[name] = policy, rules
        return rules


class InputStep(Step):
    """Checks the input; a request that is refused takes no tokens of its tenant's limits."""

    def around(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[None] | None:
        """Refuse the policy's hits; raises ``ContentRefused`` or ``ContentCheckDown``."""
        return None if request.screen is None else self._checked(request, request.screen)

    @asynccontextmanager
    async def _checked(self, request: ClientRequest[Any], screen: ContentScreen) -> AsyncIterator[None]:
        claimed, request.num_claimed_tokens = request.num_claimed_tokens, 0
        await screen.check_input(request.prepared.texts, request.exchange.prompt_param)
        request.num_claimed_tokens = claimed
        yield
