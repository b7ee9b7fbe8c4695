"""``stratos bench`` against the running platform: tenants, classes, refusals, a trace with its prefixes, chats."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stratos.cli.load.options import LoadOptions, run_plan_of
from tests.support.waiting import eventually
from tests.support.worlds.money_platform import MoneyPlatform

BENCH = ("bench", "--json", "--vocab-size", "200")
TENANTS = ("sender", "other-sender", "exported")
"""Own ones: other files count what theirs have sent. Nothing of theirs goes to the external endpoint."""
MAY_BE_INVALID = (0, 3)
"""Exit codes: a machine that is busy with other tests may hold the client up, which it then says."""


@pytest.fixture(scope="module")
def keys(platform: MoneyPlatform) -> dict[str, str]:
    declared = {"tenants": {name: {"plan": "paid"} for name in TENANTS}}
    assert platform.admin.post("/declaration", json=declared).status_code == 200
    return {name: platform.admin.post("/keys", json={"tenant": name}).json()["key"] for name in TENANTS}


def bench(platform: MoneyPlatform, *arguments: str) -> dict[str, Any]:
    done = platform.process.stratos(*BENCH, *arguments, check=False)
    assert done.returncode in MAY_BE_INVALID, done.stdout + done.stderr
    [report] = json.loads(done.stdout)
    assert report["client"]["is_valid"] == (done.returncode == 0)
    return report


def tenants_file(folder: Path, **keys: str) -> Path:
    path = folder / "tenants.json"
    rows = [{"name": name, "key": key, "class": f"class of {name}"} for name, key in keys.items()]
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.slow
def test_an_open_loop_of_several_tenants_is_counted_by_tenant_and_reason(
    platform: MoneyPlatform, keys: dict[str, str], tmp_path: Path
) -> None:
    who = {"sender": keys["sender"], "other-sender": keys["other-sender"], "stranger": "sk-unknown"}
    path, out = tenants_file(tmp_path, **who), tmp_path / "out.json"
    load = ("--requests", "12", "--prompt-tokens", "uniform:4,20", "--output-tokens", "3", "--seed", "5")
    arrivals = ("--arrivals", "poisson:30", "--slo", "ttft=60000,itl=60000")
    report = bench(platform, *arrivals, *load, "--tenants", str(path), "--out", str(out))
    planned = run_plan_of(LoadOptions(requests=12, seed=5, tenants=path), "poisson:30").sessions
    senders = [session.sender.name for session in planned]
    num_strangers = senders.count("stranger")
    assert 0 < num_strangers < 12
    assert (report["completed"], report["failed"]) == (12 - num_strangers, num_strangers)
    assert [reason.split()[0] for reason in report["refusals"]] == ["401"]
    assert report["total_output_tokens"] == 3 * report["completed"]
    assert report["good_share"] == round(report["completed"] / 12, 4)
    assert {name: part["completed"] for name, part in report["by_tenant"].items()} == {
        name: senders.count(name) * (name != "stranger") for name in sorted(who)
    }
    assert set(report["by_class"]) == {f"class of {name}" for name in who}
    assert 0 < report["p50_ttft_ms"] <= report["p99_ttft_ms"] <= report["p99_e2el_ms"]
    [written] = json.loads(out.read_text())
    assert len(written["ttfts"]) == 12
    assert keys["sender"] not in out.read_text()


def test_a_trace_is_replayed_with_its_lengths_and_shared_prefixes(
    platform: MoneyPlatform, keys: dict[str, str], tmp_path: Path
) -> None:
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [7, 8], "tenant": "sender"},
        {"timestamp": 5, "input_length": 520, "output_length": 2, "hash_ids": [7, 9], "tenant": "sender"},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path_of_tenants = tenants_file(tmp_path, **keys)
    report = bench(platform, "--arrivals", f"trace:{path}", "--tenants", str(path_of_tenants))
    assert (report["completed"], report["failed"]) == (2, 0)
    assert (report["total_input_tokens"], report["total_output_tokens"]) == (1120, 6)


@pytest.mark.slow
async def test_what_was_sent_is_exported_and_can_be_replayed(
    platform: MoneyPlatform, keys: dict[str, str], tmp_path: Path
) -> None:
    """Two prompts of one tenant share a block; the export says so, names no tenant, and is a trace again."""
    rows = [
        {"timestamp": ms, "input_length": 700, "output_length": 3, "hash_ids": [ms, ms + 1]} for ms in (0, 900, 901)
    ]
    rows[2]["hash_ids"] = rows[1]["hash_ids"]
    sent, exported = tmp_path / "sent.jsonl", tmp_path / "exported.jsonl"
    sent.write_text("".join(json.dumps(row) + "\n" for row in rows))
    key = ("--key", keys["exported"])
    report = bench(platform, "--arrivals", f"trace:{sent}", "--trace-speed", "0.5", *key)
    assert report["completed"] == 3, report
    owner = ("--key", platform.keys["platform"], "--tenant", "exported")

    told: list[str] = []

    def is_whole() -> bool:
        told.append(platform.process.stratos("trace", "export", str(exported), *owner).stdout)
        return sum(json.loads(line)["input_length"] == 700 for line in exported.read_text().splitlines()) == 3

    await eventually(is_whole, "all three requests in the ledger")
    found = [row for row in map(json.loads, exported.read_text().splitlines()) if row["input_length"] == 700]
    assert told[-1].endswith("of 0 guessed\n")
    assert [row["output_length"] for row in found] == [3, 3, 3]
    assert {row["tenant"][:2] for row in found} == {"t-"}
    # A client that lags sends late ones at once, in any order.
    assert sorted(Counter(row["hash_ids"][0] for row in found).values()) == [1, 2]
    assert bench(platform, "--arrivals", f"trace:{exported}", *key)["completed"] == len(
        exported.read_text().splitlines()
    )


def test_the_largest_batch_is_searched_and_drawn(platform: MoneyPlatform, keys: dict[str, str], tmp_path: Path) -> None:
    """A promise that is always kept: the search ends at the most that it may try."""
    page, key = tmp_path / "page.html", ("--key", keys["sender"])
    load = ("--requests", "4", "--prompt-tokens", "8", "--output-tokens", "2", "--most", "2")
    find = ("--find", "batch", "--slo", "ttft=600000", "--html", str(page))
    done = platform.process.stratos(*BENCH, *find, *load, *key, check=False)
    assert done.returncode in MAY_BE_INVALID, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [run["arrivals"] for run in found["runs"]] == ["closed:1", "closed:2"][: len(found["runs"])]
    assert found["is_client_limit"] or (found["borne"], found["not_borne"]) == (2, None)
    assert page.read_text().count("<svg") == 5


def test_a_chat_is_counted_by_the_servers_tokens(platform: MoneyPlatform, keys: dict[str, str]) -> None:
    key = ("--key", keys["sender"])
    report = bench(platform, "--api", "chat", "--arrivals", "closed:2", "--requests", "3", "--output-tokens", "5", *key)
    assert (report["completed"], report["total_output_tokens"]) == (3, 15)
    assert report["total_input_tokens"] > 3 * 128
