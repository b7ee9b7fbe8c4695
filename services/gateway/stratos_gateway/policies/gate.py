"""Which screen a tenant's requests have."""

from __future__ import annotations

import asyncio

from stratos.common.errors import BadRequest, ContentCheckDown
from stratos.core.tenancy.content import ContentPolicy
from stratos.core.tenant import Tenant
from stratos.text.filtering.rules import Rules
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.policies.classifier import Classifier
from stratos_gateway.policies.screen import Screen
from stratos_gateway.policies.source import ContentSource


class ContentGate:
    """Shared by all requests; compiled rules are kept while their policy stays as it is.

    Args:
        source: where policies are.
        classifier: what they may ask.
        metrics: counts hits.
    """

    def __init__(self, source: ContentSource, classifier: Classifier, metrics: GatewayMetrics) -> None:
        self._source = source
        self._classifier = classifier
        self._metrics = metrics
        self._compiled: dict[str, tuple[ContentPolicy, Rules]] = {}

    async def screen(self, tenant: Tenant) -> Screen | None:
        """The screen of a tenant's request; ``None`` where its plan names no policy.

        Raises:
            ContentCheckDown: the policy is not known here, or cannot be used by this build.
        """
        name = tenant.plan.content_policy
        if not name:
            return None
        policy = self._source.policy(name)
        if policy is None:
            raise ContentCheckDown(f"content policy {name!r} of tenant {tenant.name} is not known")
        return Screen(
            tenant=tenant.name,
            policy=policy,
            rules=await self._rules(name, policy),
            classifier=self._classifier,
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
