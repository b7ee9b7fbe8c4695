"""Amounts are shown exactly, statements name what they hold, and files hold every entry."""

from __future__ import annotations

import csv
import io
import stat
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.cli.money.ledger_files import write_entries
from stratos.cli.money.statements import micro_units, money, statement_html, statement_text
from stratos.cli.money.tag_costs import costs_text, read_scores
from stratos.common.errors import BadRequest
from stratos.core.ledger.costs import DeviceCost, model_costs
from stratos.core.ledger.entry import LedgerEntry, RequestOutcome
from stratos.core.ledger.exports import (
    ENTRY_COLUMNS,
    SUM_COLUMNS,
    cost_rows,
    csv_text,
    entry_row,
    statement_json,
    sums_row,
)
from stratos.core.ledger.pricing import Amounts, TokenCounts
from stratos.core.ledger.statement import make_statement
from stratos.core.ledger.sums import UsageGroup
from stratos.core.ledger.violations import violation_windows
from stratos.core.ledger.windows import WINDOW_MEASURES, PromiseWindow
from tests.support.worlds.usage_counts import TAG, spans_of

ENTRY = LedgerEntry(
    request_id="gen-1", tenant="<acme>", plan="premium",
    tag=replace(TAG, adapter="=x", http_request_id="req-9", revision="3f9a12cd4b5e"),
    outcome=RequestOutcome.REPLAYED, counts=TokenCounts(num_prompt=10, num_cached=4, num_output=3),
    amounts=Amounts(gross=2_500_000, cached_discount=500_000, credit=1), is_kept=False,
)  # fmt: skip
TABLE = {UsageGroup(day=ENTRY.day, model="base", adapter="=x", key_id="k1"): ENTRY.measures}
STATEMENT = statement_json(make_statement("<acme>", "2026-11", [TABLE], violation_windows(spans_of([ENTRY]))))


@given(amount=st.integers(0, 10**15))
def test_an_amount_survives_its_text(amount: int) -> None:
    assert micro_units(money(amount)) == amount
    assert money(-amount - 1).startswith("-")


@pytest.mark.parametrize(("amount", "text"), [(0, "0.00"), (1, "0.000001"), (1_500_000, "1.50"), (-20, "-0.00002")])
def test_amounts_are_shown_exactly(amount: int, text: str) -> None:
    assert money(amount) == text


@pytest.mark.parametrize("text", ["", "1,5", "1.0000001", "-1", "1e3", ".5"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="decimals"):
        micro_units(text)


def test_a_statement_as_text_and_as_a_page() -> None:
    text, page = statement_text(STATEMENT), statement_html(STATEMENT)
    for shown in ("2.50", "1.999999", "base + =x (1 from the response cache)", "1 of 1", "2026-11-25 00:00"):
        assert shown in text
        assert shown in page
    assert "<acme>" in text
    assert "<acme>" not in page
    assert "&lt;acme&gt;" in page


def test_windows_that_missed_a_p99_are_in_the_statement() -> None:
    window = PromiseWindow(
        plan="premium", window_s=300, number=ENTRY.tag.arrived_unix_ms // 300_000, num_ttft=250, num_ttft_over=3,
        credit=125_000, ttft_p99_us=612_345,
    )  # fmt: skip
    sums = {"windows": 288, "missed_windows": 1, "window_credit": 125_000}
    table = {**TABLE, UsageGroup(day=ENTRY.day): sums}
    statement = statement_json(make_statement("acme", "2026-11", [table], [], [window]))
    assert statement["due"] == 1_999_999 - 125_000
    later = statement_json(make_statement("acme", "2026-11", [table], []))  # single windows are not kept so long
    for shown in ("1 of 288", "0.125", "1.874999"):
        for made in (statement, later):
            assert shown in statement_text(made)
            assert shown in statement_html(made)
    for shown in ("3 of 250", "612.3", "2026-11-25 00:05"):
        assert shown in statement_text(statement)
        assert shown in statement_html(statement)
    del later["p99_windows"]  # a gateway of release 0.1
    assert "p99" not in statement_text(later)
    assert "(credits of windows)" in costs_text(cost_rows(model_costs([table], DeviceCost(hour_price=0))))


def test_costs_as_text() -> None:
    text = costs_text(cost_rows(model_costs([TABLE], DeviceCost(hour_price=2_000_000, num_paid_hours=3))))
    assert text.splitlines()[0].startswith("model")
    assert "1.999999" in text


def test_csv_has_a_head_and_no_formulas() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text([entry_row(ENTRY)], ENTRY_COLUMNS))))
    assert (rows[0]["request_id"], rows[0]["adapter"], rows[0]["due"]) == ("gen-1", "'=x", "1999999")
    assert (rows[0]["outcome"], rows[0]["is_kept"], rows[0]["http_request_id"]) == ("replayed", "False", "req-9")
    assert rows[0]["revision"] == ENTRY.tag.revision == "3f9a12cd4b5e"


def test_columns_of_the_first_release_keep_their_numbers() -> None:
    numbers = {name: number for number, name in enumerate(ENTRY_COLUMNS)}
    assert [numbers[name] for name in ("output_tokens", "gross", "cached_discount", "revision")] == [13, 21, 22, 31]
    assert SUM_COLUMNS[4:9] == ("cached_tokens", "output_tokens", "device_us", "gross", "cached_discount")
    assert SUM_COLUMNS[14 + len(WINDOW_MEASURES) :][:2] == ("net", "due")
    assert set(sums_row({})) == set(SUM_COLUMNS)


def test_files_are_private_and_hold_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [entry_row(ENTRY), entry_row(replace(ENTRY, request_id="gen-2", is_kept=None))]
    for shape in ("csv", "parquet"):
        write_entries(tmp_path / shape, shape, [row | {"prefix_hashes": "k5Vt+/aB"} for row in rows])
        assert stat.S_IMODE((tmp_path / shape).stat().st_mode) == 0o600
    assert parquet.read_table(tmp_path / "parquet").to_pylist() == rows
    assert len((tmp_path / "csv").read_text().splitlines()) == 3
    with pytest.raises(BadRequest, match="csv or parquet"):
        write_entries(tmp_path / "x", "xml", rows)


def test_costs_by_a_tag_stand_beside_the_scores_of_its_texts(tmp_path: Path) -> None:
    hour = {"device_us": 3_600_000_000, "prompt_tokens": 500_000, "output_tokens": 500_000}
    table = {
        UsageGroup(model="base", tags=("search",)): Counter(hour),
        UsageGroup(model="base", tags=("",)): Counter(hour | {"device_us": 7_200_000_000}),
    }
    path = tmp_path / "scores.json"
    path.write_text('{"search": {"base": 0.91, "other": 1}}', encoding="utf-8")
    rows = cost_rows(model_costs([table], DeviceCost(hour_price=2_000_000)), ["team"])
    head, plain, search = costs_text(rows, ["team"], read_scores(path, ["team"])).splitlines()
    assert head.split()[:2] == ["model", "team"]
    assert (plain.split()[1], plain.split()[-3], plain.split()[-1]) == ("-", "4.00", "-")
    assert (search.split()[1], search.split()[-3], search.split()[-1]) == ("search", "2.00", "0.91")


@pytest.mark.parametrize(("text", "tags"), [("[]", ["team"]), ("{", ["team"]), ('{"a": 1}', ["team"]), ("{}", [])])
def test_scores_of_another_form_or_of_no_tag_are_refused(text: str, tags: list[str], tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadRequest, match="--scores"):
        read_scores(path, tags)
