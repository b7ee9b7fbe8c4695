"""Entries survive their text; sums, statements and costs add up to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.core.ledger.costs import DeviceCost, model_costs
from stratos.core.ledger.entry import (
    LedgerEntry,
    RequestOutcome,
    StageTimes,
    day_of,
    entry_from_text,
    entry_to_text,
)
from stratos.core.ledger.itls import Itls
from stratos.core.ledger.pricing import Amounts, Times, TokenCounts
from stratos.core.ledger.statement import days_of, make_statement
from stratos.core.ledger.steps import BEYOND
from stratos.core.ledger.sums import UsageGroup, due_of, keep_fields, regroup, table_of_day
from stratos.core.ledger.usage import MeterTag
from stratos.core.ledger.violations import WINDOW_MS, violation_windows
from stratos.core.ledger.windows import Sample, WindowShare
from tests.support.worlds.usage_counts import spans_of

NOON_MS = 1_795_521_600_000 + 12 * 3_600_000
ENTRY = LedgerEntry(
    request_id="gen-1", tenant="acme", plan="premium",
    tag=MeterTag(key_id="k1", model="base", model_size="8b", route="chat", http_request_id="r",
                 arrived_unix_ms=NOON_MS),
    outcome=RequestOutcome.FINISHED, counts=TokenCounts(num_prompt=10, num_cached=4, num_output=3),
    amounts=Amounts(gross=100, cached_discount=20, credit=8),
    stages=StageTimes(queue_us=1, prefill_us=2, decode_us=3, device_us=4),
    times=Times(ttft_us=5, itl_us=6), is_kept=False,
)  # fmt: skip
NUMBERS = st.integers(0, 2**40)
SAMPLES = st.builds(Sample, bucket=st.integers(0, BEYOND), is_over=st.booleans())
STEPS = st.lists(st.tuples(st.integers(0, BEYOND), NUMBERS), max_size=16).map(tuple)
ITLS = st.builds(Itls, st.integers(1, 2**40), NUMBERS, STEPS)
ENTRIES = st.builds(
    LedgerEntry,
    request_id=st.just("gen-1"), tenant=st.just("acme"), plan=st.sampled_from(["premium", "own.plan-1"]),
    tag=st.builds(
        MeterTag, key_id=st.sampled_from(["k1", "k2", "jwt:issuer#one"]), model=st.sampled_from(["base", "other"]),
        model_size=st.sampled_from(["", "8b"]), adapter=st.sampled_from(["", "a/é"]), route=st.just("chat"),
        http_request_id=st.just(""), arrived_unix_ms=st.integers(NOON_MS, NOON_MS + 10 * WINDOW_MS),
    ),
    outcome=st.sampled_from(list(RequestOutcome)),
    counts=st.builds(TokenCounts, num_prompt=NUMBERS, num_cached=NUMBERS, num_output=NUMBERS),
    amounts=st.builds(
        Amounts, gross=NUMBERS, cached_discount=NUMBERS, batch_discount=NUMBERS, replay_discount=NUMBERS, credit=NUMBERS
    ),
    stages=st.builds(StageTimes, queue_us=NUMBERS, prefill_us=NUMBERS, decode_us=NUMBERS, device_us=NUMBERS),
    times=st.builds(Times, ttft_us=st.none() | st.integers(1, 10**9), itl_us=st.none() | st.integers(1, 10**9)),
    is_external=st.booleans(), external_cost=NUMBERS,
    window=st.none() | st.builds(
        WindowShare, window_s=st.sampled_from([60, 300]), stake=NUMBERS, ttft=st.none() | SAMPLES,
        itls=st.none() | ITLS,
    ),
    is_kept=st.sampled_from([None, True, False]), rank=st.integers(0, 2_000_000),
    prefix_hashes=st.sampled_from(["", "k5Vt+/aB", "k5Vt+/aBk5Vt+/aC"]),
)  # fmt: skip


@given(entry=ENTRIES)
def test_an_entry_survives_its_text_which_does_not_name_the_tenant(entry: LedgerEntry) -> None:
    text = entry_to_text(entry)
    assert "acme" not in text
    assert entry_from_text(entry.request_id, entry.tenant, text) == entry


def test_subjects_of_tokens_are_in_entries_and_in_no_sum() -> None:
    entries = [replace(ENTRY, tag=replace(ENTRY.tag, key_id=f"jwt:https://issuer#{n}")) for n in range(50)]
    table = table_of_day("2026-11-25", stored_sums([*entries, ENTRY]))
    assert {group.key_id: sums["requests"] for group, sums in table.items()} == {"jwt": 50, "k1": 1}
    (text,) = {entry_to_text(entry).replace(f"#{n}", "#") for n, entry in enumerate(entries)}
    assert "https://issuer#" in text
    older = table_of_day("d", {"base\x1f\x1fjwt:https://issuer#1\x1frequests": "2"})
    assert older == {UsageGroup(day="d", model="base", key_id="jwt"): {"requests": 2}}, "those of an older version"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"g": "a", "m": {}}', '{"g": "a\\u001fb\\u001fc", "m": 1}'])
def test_what_is_no_entry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        entry_from_text("gen-1", "acme", text)


def stored_sums(entries: list[LedgerEntry]) -> dict[str, str]:
    sums: Counter[str] = Counter()
    for entry in entries:
        for measure, value in entry.measures.items():
            sums[f"{entry.group}\x1f{measure}"] += value
    return {name: str(value) for name, value in sums.items()}


@given(entries=st.lists(ENTRIES, max_size=20))
def test_however_it_is_grouped_the_total_is_that_of_the_entries(entries: list[LedgerEntry]) -> None:
    table = table_of_day("2026-11-25", stored_sums(entries))
    expected: Counter[str] = Counter()
    for entry in entries:
        expected.update(entry.measures)
    for key in (keep_fields("day"), keep_fields("model", "adapter"), keep_fields("key_id"), keep_fields()):
        total: Counter[str] = Counter()
        for sums in regroup([table], key).values():
            total.update(sums)
        assert total == expected
    statement = make_statement("acme", "2026-11", [table], violation_windows(spans_of(entries)))
    assert statement.due == due_of(expected) == sum(entry.amounts.due for entry in entries)
    assert sum(window.num_violations for window in statement.windows) == expected["violations"]


def test_neighbouring_spans_with_violations_are_one_window() -> None:
    def at(number: int, is_kept: bool | None, model: str = "base") -> LedgerEntry:
        tag = replace(ENTRY.tag, arrived_unix_ms=NOON_MS + number * WINDOW_MS + 7, model=model)
        return replace(ENTRY, tag=tag, is_kept=is_kept)

    entries = [at(0, False), at(1, True), at(1, False), at(2, True), at(3, None), at(4, False), at(5, False, "other")]
    found = violation_windows(spans_of(entries))
    shown = [(w.model, (w.begin_unix_ms - NOON_MS) // WINDOW_MS, (w.end_unix_ms - NOON_MS) // WINDOW_MS) for w in found]
    assert shown == [("base", 0, 2), ("base", 4, 5), ("other", 5, 6)]
    assert [(w.num_requests, w.num_violations, w.credit) for w in found] == [(3, 2, 24), (1, 1, 8), (1, 1, 8)]


def test_days_and_months_are_those_of_utc() -> None:
    assert (day_of(NOON_MS), ENTRY.day) == ("2026-11-25", "2026-11-25")
    assert (len(days_of("2028-02")), days_of("2028-02")[-1]) == (29, "2028-02-29")
    for wrong in ("2026-13", "2026-1", "26-01", "2026-11-01", ""):
        with pytest.raises(ValueError, match="2026-11"):
            days_of(wrong)


def test_cost_and_margin_of_models() -> None:
    hour = 3_600_000_000
    table = {
        UsageGroup(day="d", model="a", key_id="k1"): {
            "device_us": hour,
            "output_tokens": 1_000_000,
            "gross": 9_000_000,
        },
        UsageGroup(day="d", model="a", key_id="k2"): {"device_us": hour, "prompt_tokens": 1_000_000, "credit": 1_000},
        UsageGroup(day="d", model="b"): {"device_us": hour, "replays": 1, "external_cost": 500_000},
    }
    a, b = model_costs([table], DeviceCost(hour_price=2_000_000))
    assert (a.cost, a.earned, a.margin) == (4_000_000, 8_999_000, 4_999_000)
    assert (a.cost_per_million, a.earned_per_million) == (2_000_000, 4_499_500)
    assert (b.device_cost, b.external_cost, b.cost) == (2_000_000, 500_000, 2_500_000)
    assert (b.margin, b.cost_per_million) == (-2_500_000, None)
    shared = model_costs([table], DeviceCost(hour_price=1_000_000, num_paid_hours=10))
    assert [found.device_cost for found in shared] == [6_666_666, 3_333_334]
    assert [found.cost for found in model_costs([{}], DeviceCost(hour_price=1, num_paid_hours=1))] == []


def test_credits_of_windows_cost_earnings_and_take_no_part_of_the_devices() -> None:
    table = {
        UsageGroup(day="d", model="a"): {"gross": 100, "device_us": 5},
        UsageGroup(day="d"): {"windows": 2, "missed_windows": 1, "window_credit": 30},
    }
    a, windows = model_costs([table], DeviceCost(hour_price=10, num_paid_hours=3))
    assert (a.device_cost, windows.device_cost, windows.model) == (30, 0, "")
    assert a.earned + windows.earned == 70
    kept = {UsageGroup(day="d", model="a"): {"gross": 100}, UsageGroup(day="d"): {"windows": 2}}
    assert [cost.model for cost in model_costs([kept], DeviceCost(hour_price=10))] == ["a"]
