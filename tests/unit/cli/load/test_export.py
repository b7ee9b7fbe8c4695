"""A ledger as a trace: order, lengths, shared blocks, pseudonyms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratos.cli.load.traces.export import ExportNames, LedgerTrace
from stratos.cli.load.traces.mooncake import BLOCK_TOKENS, TraceRow
from stratos.cli.main import app
from stratos.cli.money.ledger_traces import days_from, exported_rows
from stratos.common.errors import BadRequest
from stratos.core.ledger.prefix_hashes import prefix_hashes, prefix_root

NAMES = ExportNames(salt=b"s")
ROOT = prefix_root(bytes(32), b"salt", "model", "")


def entry(at_ms: int, prompt: int = 600, cached: int = 0, output: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "request_id": f"r{at_ms}", "tenant": "acme", "model": "base", "adapter": "", "arrived_unix_ms": at_ms,
        "prompt_tokens": prompt, "cached_tokens": cached, "output_tokens": output, **more,
    }  # fmt: skip


def hashed(at_ms: int, *prompt: int, most: int = 64, **more: Any) -> dict[str, Any]:
    """An entry whose prompt has 512 tokens of each of these kinds, and 100 more."""
    ids = [kind for kind in prompt for _ in range(BLOCK_TOKENS)]
    return entry(at_ms, len(ids) + 100, prefix_hashes=prefix_hashes(ROOT, ids, most), **more)


def rows_of(entries: Iterable[dict[str, Any]], *, keeps_names: bool = False, salt: bytes = b"s") -> list[TraceRow]:
    return list(LedgerTrace(ExportNames(salt=salt, keeps_names=keeps_names)).rows(entries))


def test_rows_are_in_the_order_of_arrival_and_begin_at_zero() -> None:
    found = rows_of([entry(5000, output=2), entry(3000), entry(4000, prompt=10)])
    assert [row.timestamp_ms for row in found] == [0, 1000, 2000]
    assert [(row.num_prompt_tokens, row.num_output_tokens) for row in found] == [(600, 5), (10, 5), (600, 2)]


def test_days_follow_one_another_on_one_clock() -> None:
    trace = LedgerTrace(NAMES)
    assert [row.timestamp_ms for day in ([entry(1000)], [entry(9000)]) for row in trace.rows(day)] == [0, 8000]


def test_embeddings_and_requests_without_output_are_left_out() -> None:
    assert len(rows_of([entry(1, output=0), entry(2, prompt=0), entry(3)])) == 1


def test_cached_blocks_are_those_of_the_latest_prompt_that_is_long_enough() -> None:
    first, short, third, own = rows_of(
        [entry(1, 2048), entry(2, 100), entry(3, 1600, cached=1100), entry(4, 2000, cached=0)]
    )
    assert len(first.hash_ids) == 4
    assert third.hash_ids[:2] == first.hash_ids[:2]
    assert len(third.hash_ids) == 4
    assert not set(third.hash_ids[2:]) & {*first.hash_ids, *short.hash_ids}
    assert not set(own.hash_ids) & {*first.hash_ids, *third.hash_ids}


def test_prompts_that_begin_alike_share_exactly_these_blocks_whatever_was_cached_on_whichever_day() -> None:
    trace = LedgerTrace(NAMES)
    days = [[hashed(1, 1, 2, 3), hashed(2, 5, cached=512)], [hashed(9000, 1, 2, 4, 3), hashed(9001, 1, 2, 3)]]
    first, other, third, again = (row.hash_ids for day in days for row in trace.rows(day))
    assert (len(first), len(other), len(third), len(again)) == (4, 2, 5, 4)
    assert third[:2] == first[:2] == again[:2]
    assert again[2] == first[2]
    assert not set(third[2:]) & {*first, *again}, "what follows another beginning is another block"
    assert not set(other) & set(first), "cached tokens of no prompt in the file"
    assert again[3] != first[3], "a block that is not full is its own"
    assert trace.num_guessed == 0


def test_entries_without_hashes_are_guessed_as_before_and_counted() -> None:
    trace = LedgerTrace(NAMES)
    entries = [entry(1, 1500), hashed(2, 1, 2), entry(3, 1200, cached=1024), entry(4, 400), hashed(5, 1, 2)]
    older, first, guessed, _, second = (row.hash_ids for row in trace.rows(entries))
    assert second[:2] == first[:2] == guessed[:2]
    assert not set(older) & set(first)
    assert trace.num_guessed == 2, "a prompt of less than a block has nothing to guess"


def test_what_lies_behind_the_last_hash_is_guessed_among_prompts_that_begin_so() -> None:
    trace = LedgerTrace(NAMES)
    entries = [
        hashed(1, 1, 2, 3, 4, most=2), hashed(2, 6, 7, 8, 9, most=2), hashed(3, 1, 2, 3, 4, most=2, cached=3 * 512),
        hashed(4, 1, 2, 3, 5, most=2, cached=0),
    ]  # fmt: skip
    first, _, third, last = (row.hash_ids for row in trace.rows(entries))
    assert third[:3] == first[:3]
    assert third[3] != first[3]
    assert [one == two for one, two in zip(first, last, strict=True)] == [True, True, False, False, False]
    assert trace.num_guessed == 4


def test_blocks_of_tenants_and_files_cannot_be_joined() -> None:
    [mine], [other] = rows_of([hashed(1, 1)]), rows_of([hashed(1, 1, tenant="bmce")])
    [later] = rows_of([hashed(1, 1)], salt=b"other")
    assert len({row.hash_ids[0] for row in (mine, other, later)}) == 3
    hashes = hashed(1, 1)["prefix_hashes"]
    assert hashes not in mine.as_line()
    assert all(isinstance(one, int) and 0 <= one < 2**53 for one in mine.hash_ids), "whole in every reader of JSON"


@pytest.mark.parametrize("other", [{"tenant": "bmce"}, {"adapter": "x"}, {"model": "m"}])
def test_nothing_is_shared_between_tenants_models_and_adapters(other: dict[str, str]) -> None:
    """A prompt that was cached before the first day of the file has blocks of its own, too."""
    first, second = rows_of([entry(1, 1024), entry(2, 1024, cached=1024, **other)])
    assert not set(first.hash_ids) & set(second.hash_ids)


def test_tenants_have_pseudonyms_that_two_files_do_not_share() -> None:
    first, second, again = rows_of([entry(1), entry(2, tenant="bmce"), entry(3)])
    assert first.tenant == again.tenant != second.tenant
    assert "acme" not in first.as_line()
    assert first.model == ""
    [other] = rows_of([entry(1)], salt=b"other")
    assert other.tenant != first.tenant


def test_names_are_kept_where_they_are_asked_for() -> None:
    base, adapter = rows_of([entry(1), entry(2, adapter="style")], keeps_names=True)
    assert (base.tenant, base.model, adapter.model) == ("acme", "base", "style")


class Ledger:
    """Answers as the admin API, in two pages."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []

    def call(self, method: str, path: str, **query: str) -> dict[str, Any]:
        if path == "/ledger/tenants":
            return {"data": [{"id": "tn_1"}, {"id": "tn_2"}]}
        self.asked.append(query)
        begin = int(query["day"][-1]) * 1000 + int(query["tenant"][-1])
        if query["cursor"] == "0":
            return {"data": [entry(begin + 10), entry(begin + 20)], "next_cursor": 7}
        return {"data": [entry(begin + 30)], "next_cursor": 0}


def test_all_tenants_of_all_days_are_read_to_the_last_page() -> None:
    ledger = Ledger()
    rows = list(exported_rows(ledger, days_from("2026-11-01", "2026-11-02"), None, LedgerTrace(NAMES)))  # type: ignore[arg-type]
    assert len(rows) == 2 * 2 * 3
    assert [row.timestamp_ms for row in rows] == sorted(row.timestamp_ms for row in rows)
    assert {query["tenant"] for query in ledger.asked} == {"tn_1", "tn_2"}
    some = list(exported_rows(ledger, ["2026-11-01"], ["tn_2"], LedgerTrace(NAMES)))  # type: ignore[arg-type]
    assert len(some) == 3


def test_the_command_says_of_how_many_something_is_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def client(*_: object) -> Iterator[Ledger]:
        yield Ledger()

    path = tmp_path / "t.jsonl"
    monkeypatch.setattr("stratos.cli.commands.trace.admin_client", client)
    done = CliRunner().invoke(app, ["trace", "export", str(path), "--first", "2026-11-01"])
    assert done.output == f"6 requests are in {path}; shared blocks of 0 are exact, of 6 guessed\n"
    assert len(path.read_text().splitlines()) == 6


@pytest.mark.parametrize(("first", "last"), [("x", "2026-11-01"), ("2026-11-02", "2026-11-01"), ("2026-11", "2026-12")])
def test_other_days_are_refused(first: str, last: str) -> None:
    with pytest.raises(BadRequest, match="--last"):
        days_from(first, last)


def test_commands_make_and_check_a_file(tmp_path: Path) -> None:
    path, run = tmp_path / "t.jsonl", CliRunner()
    made = run.invoke(app, ["trace", "generate", "azure-code", str(path), "--requests", "30"])
    assert (made.exit_code, made.output) == (0, f"30 requests are in {path}\n")
    assert run.invoke(app, ["trace", "check", str(path)]).output.startswith("30 requests in ")
    assert "azure-code" in run.invoke(app, ["trace", "shapes"]).output
    path.write_text("{}\n")
    wrong = run.invoke(app, ["trace", "check", str(path)])
    assert wrong.exit_code == 1
    assert f"{path}:1: timestamp must be" in wrong.output
    assert run.invoke(app, ["trace", "generate", "x", str(path)]).exit_code == 1
