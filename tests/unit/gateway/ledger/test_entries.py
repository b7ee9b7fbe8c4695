"""Entries of requests whose gateway died."""

from __future__ import annotations

from stratos.core.ledger.pricing import TokenCounts
from stratos.core.ledger.usage import MeterTag, UsageCount
from stratos.core.requests.records import RequestKey
from stratos.core.tenancy.plan import STANDARD
from stratos_gateway.ledger.entries import claimed_entry


def test_an_answer_that_went_on_from_another_is_charged_by_its_own_tokens() -> None:
    count = UsageCount(
        key=RequestKey("gen-1", 0),
        tenant="acme",
        tag=MeterTag(num_cached_tokens=4, num_prior_tokens=30),
        num_prompt_tokens=9,
        num_cached_tokens=4,
        num_output_tokens=42,
    )
    assert claimed_entry(count, STANDARD).counts == TokenCounts(num_output=12)
