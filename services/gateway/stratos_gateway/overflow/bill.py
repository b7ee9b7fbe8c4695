"""The ledger's draft of a request at the external endpoint: the tenant pays as ever, the platform pays the endpoint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stratos.common.ids import new_id
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.pricing import Times, TokenCounts, amount_of
from stratos.core.ledger.usage import MeterTag
from stratos.core.tenancy.prices import Price
from stratos.core.tenant import Tenant
from stratos_gateway.answering.draft import Draft, charged_counts, is_platform_failure, outcome_of
from stratos_gateway.openai.chunks import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalBill:
    """Whom a request is billed to, and what the endpoint charges for it."""

    tenant: Tenant
    tag: MeterTag
    price: Price
    request_id: str = field(default_factory=lambda: new_id("gen"))

    def begun(self, usage: Usage, took: Usage) -> Draft:
        """The draft of an answer that is still coming: what stays of it where this gateway dies."""
        return self._draft(took, RequestOutcome.RECOVERED, _charged(usage))

    def given_up(self, took: Usage) -> Draft:
        """The draft of an answer that its client got nothing of: what the endpoint charges, and no more."""
        return self._draft(took, RequestOutcome.FAILED, TokenCounts())

    def ended(self, usage: Usage, took: Usage, error: BaseException | None) -> Draft:
        """The draft of an answer, whole or broken off by ``error``.

        Args:
            usage: what the tenant is charged for.
            took: what the endpoint charges for.
            error: why it ended early.
        """
        outcome = outcome_of(error)
        if outcome is RequestOutcome.FINISHED:
            outcome = RequestOutcome.EXTERNAL
        return replace(self._draft(took, outcome, _charged(usage)), is_platform_failure=is_platform_failure(error))

    def _draft(self, took: Usage, outcome: RequestOutcome, counts: TokenCounts) -> Draft:
        return Draft(
            request_id=self.request_id,
            tenant=self.tenant.id,
            plan=self.tenant.plan,
            tag=self.tag,
            outcome=outcome,
            counts=counts,
            is_external=True,
            external_cost=amount_of(self.price, _counts(took)),
            times=Times(),
        )


def _counts(usage: Usage) -> TokenCounts:
    num_cached = min(usage.num_cached_tokens, usage.num_prompt_tokens)
    return TokenCounts(num_prompt=usage.num_prompt_tokens, num_cached=num_cached, num_output=usage.num_output_tokens)


def _charged(usage: Usage) -> TokenCounts:
    counts = _counts(usage)
    return charged_counts(counts.num_prompt, counts.num_cached, counts.num_output)
