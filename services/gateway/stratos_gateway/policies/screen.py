"""One request's texts and its tenant's policy: what is looked for, what is counted, what follows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratos.common.errors import ContentCheckDown, ContentRefused
from stratos.core.tenancy.content import ContentPolicy
from stratos.text.filtering.rules import Hit, Rules
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.policies.classifier import Classifier, NoVerdict

_log = logging.getLogger(__name__)
INPUT, OUTPUT = "input", "output"
CLASSIFIER = "classifier"
"""Rule id of its hits."""
_INLINE_CHARS = 16 * 1024
"""Text of a request that is looked through on the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Belongs to one request."""

    tenant: str
    policy: ContentPolicy
    rules: Rules
    classifier: Classifier
    metrics: GatewayMetrics

    async def check_input(self, texts: Sequence[str], param: str) -> None:
        """Refuse what the policy does not let in.

        Args:
            texts: messages, prompts or inputs.
            param: what the route calls them.

        Raises:
            ContentRefused: a rule, or the classifier, has a hit.
            ContentCheckDown: the classifier gives no verdict, and the policy lets nothing pass without.
        """
        if not self.policy.checks_input:
            return
        is_short = sum(map(len, texts)) <= _INLINE_CHARS
        hit = self._first_hit(texts) if is_short else await asyncio.to_thread(self._first_hit, texts)
        if hit is not None:
            self.count(hit.rule, INPUT)
            raise _refused(param)
        if await self.is_classified("\n".join(texts), INPUT):
            raise _refused(param)

    def _first_hit(self, texts: Sequence[str]) -> Hit | None:
        """The hit of the first text that has one; in any thread."""
        return next(filter(None, map(self.rules.first_hit, texts)), None)

    async def verdict(self, text: str) -> Mapping[str, bool]:
        """Every rule, and whether a text has a hit of it; raises like ``is_classified``."""
        hits = await asyncio.to_thread(self.rules.rules_hit, text)
        found = {rule: rule in hits for rule in self.rules.names}
        return found | ({CLASSIFIER: await self.is_classified(text, INPUT)} if self.asks_classifier else {})

    @property
    def checks_output(self) -> bool:
        """Answers go through it."""
        return self.policy.checks_output and self.policy.is_active

    @property
    def asks_classifier(self) -> bool:
        """Texts are classified."""
        return self.policy.classifier_threshold is not None

    async def is_classified(self, text: str, side: str) -> bool:
        """Whether the classifier's score is a hit, which is counted.

        Raises:
            ContentCheckDown: it gives no verdict, and the policy lets nothing pass without.
        """
        threshold = self.policy.classifier_threshold
        if threshold is None or not text:
            return False
        try:
            is_hit = await self.classifier.score(text) >= threshold
        except NoVerdict as error:
            outcome = "passed" if self.policy.fails_open else "refused"
            self.metrics.content_unchecked.labels(self.metrics.tenants.label_of(self.tenant), side, outcome).inc()
            _log.warning("%s of tenant %s is %s unchecked: %s", side, self.tenant, outcome, error)
            if self.policy.fails_open:
                return False
            raise ContentCheckDown(f"the content policy cannot be checked: {error}") from None
        if is_hit:
            self.count(CLASSIFIER, side)
        return is_hit

    def count(self, rule: str, side: str) -> None:
        """A hit; what was hit is written down nowhere."""
        self.metrics.content_hits.labels(self.metrics.tenants.label_of(self.tenant), rule, side).inc()


def _refused(param: str) -> ContentRefused:
    return ContentRefused("the request is refused by the content policy", param=param)
