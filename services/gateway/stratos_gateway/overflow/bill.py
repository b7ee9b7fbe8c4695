"""The ledger's draft of a request at the external endpoint: the tenant pays as ever, the platform pays the endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.common.ids import new_id
from stratos.core.generation import Receipt
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

    def draft(self, usage: Usage, receipt: Receipt, error: BaseException | None) -> Draft:
        """The draft of an answer, whole or broken off by ``error``."""
        num_prompt, num_output = usage.num_prompt_tokens, usage.num_output_tokens
        num_cached = min(usage.num_cached_tokens, num_prompt)
        took = TokenCounts(num_prompt=num_prompt, num_cached=num_cached, num_output=num_output)
        outcome = outcome_of(error)
        return Draft(
            request_id=new_id("gen"),
            tenant=self.tenant.id,
            plan=self.tenant.plan,
            tag=self.tag,
            outcome=RequestOutcome.EXTERNAL if outcome is RequestOutcome.FINISHED else outcome,
            counts=charged_counts(num_prompt, num_cached, num_output),
            is_external=True,
            external_cost=amount_of(self.price, took),
            times=Times(),
            receipt=receipt,
            is_platform_failure=is_platform_failure(error),
        )
