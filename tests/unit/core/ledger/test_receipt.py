"""Receipts: sections by table, in their order, bounded."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stratos.core.ledger.receipt import CLAIMED_RANK, MAX_TEXT, OWN_RANK, claimed_receipt, request_receipt
from tests.support.worlds.usage_counts import COUNT


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


def test_a_workers_count_makes_a_receipt_of_lower_rank() -> None:
    count = replace(COUNT, tag=replace(COUNT.tag, http_request_id="req-1"))
    receipt = claimed_receipt(count, "2026-11-23")
    sections = json.loads(receipt.text)
    assert (receipt.rank, receipt.request_id, receipt.tenant) == (CLAIMED_RANK, "req-1", "acme")
    assert sections["entries"] == [["2026-11-23", COUNT.key.request_id, COUNT.tag.arrived_unix_ms]]
    assert sections["generations"][0]["output_tokens"] == COUNT.num_output_tokens
    assert sections["answer"] == {"outcome": "recovered"}
