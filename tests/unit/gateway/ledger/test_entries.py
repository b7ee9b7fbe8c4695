"""Entries of requests whose gateway died."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stratos.core.ledger.pricing import TokenCounts
from stratos.core.ledger.usage import MeterTag, UsageCount
from stratos.core.requests.records import RequestKey
from stratos.core.tenancy.plan import STANDARD
from stratos.core.tenancy.prices import Price
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.rpc.codec.usage import counts_from_pb, counts_to_pb
from stratos_gateway.answering.meter_tag import meter_tag
from stratos_gateway.ledger.entries import claimed_entry
from stratos_gateway.models.catalogue import ModelTarget


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


@pytest.mark.parametrize(
    ("is_whole", "is_cut", "expected"),
    [
        (True, True, TokenCounts()),
        (True, False, TokenCounts(num_prompt=9, num_output=5)),
        (False, True, TokenCounts(num_prompt=9, num_output=5)),
    ],
    ids=["nothing went to its client", "its client may have it", "its client has a part of it"],
)
def test_an_answer_in_one_piece_that_its_gateway_had_not_got_is_free(
    is_whole: bool, is_cut: bool, expected: TokenCounts
) -> None:
    """The defect: a client whose connection ended with the gateway paid for an answer that it could not have."""
    plan = replace(STANDARD, prices={"default": Price(prompt=1_000_000, output=1_000_000)})
    served: Any = SimpleNamespace(base=SimpleNamespace(name="base", digest="d" * 64, size=""))
    target, tenant = ModelTarget(name="base", served=served), Tenant(name="acme", plan=plan)
    tag = meter_tag(tenant, target, "chat", NO_TRACE, 1, is_whole=is_whole)
    key = RequestKey("gen-1", 0)
    count = UsageCount(key=key, tenant="acme", tag=tag, num_prompt_tokens=9, num_output_tokens=5, is_cut=is_cut)
    [told] = counts_from_pb(counts_to_pb([count]))
    entry = claimed_entry(told, plan)
    assert (entry.counts, entry.amounts.gross) == (expected, 14 if expected.num_output else 0)


@pytest.mark.parametrize(("tier", "discount"), [("default", 0), ("flex", 5), ("batch", 5)])
def test_a_request_at_the_price_of_the_batch_class_keeps_that_when_its_gateway_dies(tier: str, discount: int) -> None:
    """The defect: it was priced by its tenant's plan, and charged twice as much; its charge went into a window."""
    plan = replace(STANDARD, prices={"default": Price(output=1_000_000)})
    tenant = Tenant(name="acme", plan=plan).on_tier(tier)
    served: Any = SimpleNamespace(base=SimpleNamespace(name="base", digest="d" * 64, size=""))
    tag = meter_tag(tenant, ModelTarget(name="base", served=served), "chat", NO_TRACE, 1)
    count = UsageCount(key=RequestKey("gen-1", 0), tenant="acme", tag=tag, num_prompt_tokens=9, num_output_tokens=10)
    [told] = counts_from_pb(counts_to_pb([count]))
    entry = claimed_entry(told, plan)
    assert (entry.amounts.gross, entry.amounts.batch_discount) == (10, discount)
    assert (entry.window is None) == bool(discount)
