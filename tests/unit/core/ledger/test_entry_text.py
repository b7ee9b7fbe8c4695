"""The text of an entry is one line of ASCII, the same as of versions that wrote it with ``json``."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stratos.core.ledger.entry import LedgerEntry, entry_from_text, entry_to_text
from stratos.core.ledger.pricing import Amounts
from tests.support.worlds.usage_counts import ENTRY, TAG


@pytest.mark.parametrize(
    "entry",
    [
        ENTRY,
        replace(ENTRY, tag=replace(TAG, cost_tags={"Abteilung": "Zürich 東京", "a": 'quote " and \\ and \n'})),
        replace(ENTRY, amounts=Amounts(gross=2**70, credit=2**65)),
        replace(ENTRY, external_cost=2**63 - 1, is_external=True),
    ],
    ids=["plain", "letters of all alphabets", "more than 64 bits", "just 64 bits"],
)
def test_any_entry_is_written_as_json_writes_it(entry: LedgerEntry) -> None:
    text = entry_to_text(entry)
    assert text == json.dumps(json.loads(text), separators=(",", ":"))
    assert text.startswith('{"d":') == bool(entry.stages.by_attempt)
    found = entry_from_text(entry.request_id, entry.tenant, text)
    assert (found.tag, found.amounts, found.external_cost) == (entry.tag, entry.amounts, entry.external_cost)
