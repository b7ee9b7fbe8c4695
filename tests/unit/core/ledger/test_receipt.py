"""Receipts: sections by table, in their order, bounded."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.pricing import TokenCounts
from stratos.core.ledger.receipt import CLAIMED_RANK, MAX_TEXT, OWN_RANK, entry_receipts, request_receipt
from tests.support.worlds.usage_counts import ENTRY


def test_sections_stand_in_the_order_of_the_table() -> None:
    receipt = request_receipt("acme", "req-1", {"answer": {"status": 200}, "request": {"model": "base"}})
    assert list(json.loads(receipt.text)) == ["request", "answer"]
    assert receipt.rank == OWN_RANK


def test_a_section_that_is_in_no_table_is_a_bug() -> None:
    with pytest.raises(KeyError, match="weather"):
        request_receipt("acme", "req-1", {"weather": "fine"})


def test_what_does_not_fit_is_named_and_what_follows_stays() -> None:
    sections = {"request": {"model": "base"}, "generations": ["x" * MAX_TEXT], "answer": {"status": 200}}
    receipt = request_receipt("acme", "req-1", sections)
    assert len(receipt.text) <= MAX_TEXT
    assert json.loads(receipt.text) == {
        "request": {"model": "base"},
        "answer": {"status": 200},
        "omitted": ["generations"],
    }


def test_entries_of_one_request_make_one_receipt_of_lower_rank() -> None:
    tag = replace(ENTRY.tag, http_request_id="req-1")
    first = replace(ENTRY, tag=tag, outcome=RequestOutcome.RECOVERED, rank=2)
    second = replace(first, request_id="gen-2", counts=TokenCounts(num_prompt=5, num_output=7))
    [receipt] = entry_receipts([first, replace(ENTRY, request_id="gen-3"), second])  # no client asked for gen-3
    sections = json.loads(receipt.text)
    assert (receipt.rank, receipt.request_id, receipt.tenant) == (CLAIMED_RANK, "req-1", "acme")
    assert sections["entries"] == [[first.day, name, tag.arrived_unix_ms] for name in ("gen-1", "gen-2")]
    assert [one["output_tokens"] for one in sections["generations"]] == [3, 7]
    assert sections["generations"][0]["num_attempts"] == 3
    assert (sections["source"], sections["answer"]) == ("workers", {"outcome": "recovered"})


@pytest.mark.parametrize(
    ("change", "source"),
    [({"outcome": RequestOutcome.REPLAYED}, "response_cache"), ({"is_external": True}, "external")],
)
def test_an_entry_that_its_gateway_left_says_who_answered(change: dict[str, Any], source: str) -> None:
    [receipt] = entry_receipts([replace(ENTRY, tag=replace(ENTRY.tag, http_request_id="req-1"), **change)])
    assert CLAIMED_RANK < receipt.rank < OWN_RANK
    assert json.loads(receipt.text)["source"] == source
