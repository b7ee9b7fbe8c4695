"""``stratos bench`` against the running platform: tenants, classes, refusals, a trace with its prefixes, chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stratos.cli.load.options import LoadOptions, run_plan_of
from tests.support.waiting import eventually
from tests.support.worlds.money_platform import MoneyPlatform

BENCH = ("bench", "--json", "--vocab-size", "200")
MAY_BE_INVALID = (0, 3)
"""Exit codes: a machine that is busy with other tests may hold the client up, which it then says."""


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


def test_an_open_loop_of_several_tenants_is_counted_by_tenant_and_reason(
    platform: MoneyPlatform, tmp_path: Path
) -> None:
    keys = {"payer": platform.keys["payer"], "resident": platform.keys["resident"], "stranger": "sk-unknown"}
    path, out = tenants_file(tmp_path, **keys), tmp_path / "out.json"
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
        name: senders.count(name) * (name != "stranger") for name in sorted(keys)
    }
    assert set(report["by_class"]) == {f"class of {name}" for name in keys}
    assert 0 < report["p50_ttft_ms"] <= report["p99_ttft_ms"] <= report["p99_e2el_ms"]
    [written] = json.loads(out.read_text())
    assert len(written["ttfts"]) == 12
    assert platform.keys["payer"] not in out.read_text()


def test_a_trace_is_replayed_with_its_lengths_and_shared_prefixes(platform: MoneyPlatform, tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [7, 8], "tenant": "payer"},
        {"timestamp": 5, "input_length": 520, "output_length": 2, "hash_ids": [7, 9], "tenant": "payer"},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = tenants_file(tmp_path, payer=platform.keys["payer"], resident=platform.keys["resident"])
    report = bench(platform, "--arrivals", f"trace:{path}", "--tenants", str(keys))
    assert (report["completed"], report["failed"]) == (2, 0)
    assert (report["total_input_tokens"], report["total_output_tokens"]) == (1120, 6)


async def test_what_was_sent_is_exported_and_can_be_replayed(platform: MoneyPlatform, tmp_path: Path) -> None:
    """Two prompts of one tenant share a block; the export says so, names no tenant, and is a trace again."""
    rows = [
        {"timestamp": ms, "input_length": 700, "output_length": 3, "hash_ids": [ms, ms + 1]} for ms in (0, 900, 901)
    ]
    rows[2]["hash_ids"] = rows[1]["hash_ids"]
    sent, exported = tmp_path / "sent.jsonl", tmp_path / "exported.jsonl"
    sent.write_text("".join(json.dumps(row) + "\n" for row in rows))
    key = ("--key", platform.keys["leaver"])
    bench(platform, "--arrivals", f"trace:{sent}", "--trace-speed", "0.5", *key)
    owner = ("--key", platform.keys["platform"], "--tenant", "leaver")

    def is_whole() -> bool:
        platform.process.stratos("trace", "export", str(exported), *owner)
        return sum(json.loads(line)["input_length"] == 700 for line in exported.read_text().splitlines()) == 3

    await eventually(is_whole, "all three requests in the ledger")
    found = [row for row in map(json.loads, exported.read_text().splitlines()) if row["input_length"] == 700]
    assert [row["output_length"] for row in found] == [3, 3, 3]
    assert "leaver" not in exported.read_text()
    assert found[1]["hash_ids"][0] == found[2]["hash_ids"][0] != found[0]["hash_ids"][0]
    assert bench(platform, "--arrivals", f"trace:{exported}", *key)["completed"] == len(
        exported.read_text().splitlines()
    )


def test_a_chat_is_counted_by_the_servers_tokens(platform: MoneyPlatform, tmp_path: Path) -> None:
    key = ("--key", platform.keys["payer"])
    report = bench(platform, "--api", "chat", "--arrivals", "closed:2", "--requests", "3", "--output-tokens", "5", *key)
    assert (report["completed"], report["total_output_tokens"]) == (3, 15)
    assert report["total_input_tokens"] > 3 * 128
