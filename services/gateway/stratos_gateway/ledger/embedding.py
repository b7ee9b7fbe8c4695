"""A request for embeddings, in the ledger: its prompt tokens, once its vectors are there."""

from __future__ import annotations

from stratos.common.ids import new_id
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.pricing import Times, TokenCounts
from stratos.core.ledger.usage import MeterTag
from stratos.core.tenant import Tenant
from stratos_gateway.ledger.draft import Draft
from stratos_gateway.ledger.meter import Meter


def bill_embeddings(meter: Meter, tenant: Tenant, tag: MeterTag, num_prompt_tokens: int) -> None:
    """One entry for the request; one that fails is not billed, and workers keep no count of it.

    Args:
        meter: of the gateway.
        tenant: whose key it carries.
        tag: of the request.
        num_prompt_tokens: over all its inputs.
    """
    draft = Draft(
        request_id=new_id("emb"),
        tenant=tenant.name,
        plan=tenant.plan,
        tag=tag,
        outcome=RequestOutcome.FINISHED,
        counts=TokenCounts(num_prompt=num_prompt_tokens),
        times=Times(),
    )
    meter.end(draft)
