"""An answer from the response cache, in the ledger: what it would have cost, and the discount for it."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.common.ids import new_id
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.pricing import Times, TokenCounts
from stratos.core.tenancy.plan import Plan
from stratos_gateway.generation.generation import GenerationSpec
from stratos_gateway.ledger.draft import Draft
from stratos_gateway.ledger.meter import Meter
from stratos_gateway.ledger.responses import KeptAnswer


def bill_replay(meter: Meter, plan: Plan, specs: Sequence[GenerationSpec], answer: KeptAnswer) -> None:
    """One entry per prompt; its output tokens count once the answer is written.

    Args:
        meter: of the gateway.
        plan: of the tenant.
        specs: of the request.
        answer: that it got.
    """
    for spec, prompt in zip(specs, answer.prompts, strict=True):
        if spec.meter is None:
            continue
        meter.end(
            Draft(
                request_id=new_id("gen"),
                tenant=spec.terms.tenant,
                plan=plan,
                tag=spec.meter,
                outcome=RequestOutcome.REPLAYED,
                counts=TokenCounts(
                    num_prompt=prompt.num_prompt_tokens,
                    num_cached=prompt.num_cached_tokens,
                    num_output=prompt.num_output_tokens,
                ),
                times=Times(),
            )
        )
