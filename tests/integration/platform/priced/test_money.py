"""Money and content through a real platform of two gateways and one router, with a batch slot of one.

What reports say (command line, admin API, files) is what the clients were told, at the prices that the test knows.
Requests that would wait too long go outside by the real router's estimate, and are in those reports, too.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from pyarrow.parquet import read_table
from typer.testing import CliRunner

from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.cli.main import app
from stratos.cli.money.statements import money
from stratos.pki.local import dial_as
from stratos.rpc.clients.dialer import ANY_WORKER, PeerRole
from stratos.rpc.codec.fleet import WORKER_STATUS
from stratos.store.redis import open_redis
from tests.support.servers.planted_text import open_places
from tests.support.waiting import eventually
from tests.support.worlds.money_platform import (
    EXTERNAL_COST,
    EXTERNAL_USAGE,
    GATEWAYS,
    PRICES,
    SCORED,
    MoneyPlatform,
)

PRICE = PRICES["default"]
MONTH = f"{datetime.now(UTC):%Y-%m}"


def body_of(prompt: Any, max_tokens: int = 6, **more: Any) -> dict[str, Any]:
    return {"model": "base", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}


async def ask(http: httpx.AsyncClient, prompt: Any, **body: Any) -> httpx.Response:
    return await http.post("/completions", json=body_of(prompt, **body))


def due_of(usages: list[dict[str, Any]]) -> tuple[Counter[str], int]:
    """Tokens of answers, and what they cost."""
    counts: Counter[str] = Counter(requests=len(usages))
    due = 0
    for usage in usages:
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
        counts.update(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)
        due += (prompt - cached) * PRICE["prompt"] + cached * PRICE["cached"] + output * PRICE["output"]
    return counts, due // 1_000_000


async def until_billed(platform: MoneyPlatform, tenant: str, num_requests: int) -> dict[str, Any]:
    """The statement, once it has all requests."""
    found: dict[str, Any] = {}

    def is_there() -> bool:
        answer = platform.admin.get("/statement", params={"tenant": tenant, "month": MONTH})
        found.update(answer.json())
        return sum(line["requests"] for line in found["lines"]) == num_requests

    await eventually(lambda: asyncio.to_thread(is_there), "all requests are in the ledger", poll_s=0.1)
    return found


def command(platform: MoneyPlatform, *arguments: str, by: str = "platform", check: bool = True) -> str:
    """Output of a command; it finds the platform by its data directory, as in a process of its own."""
    where = ("--key", platform.keys[by], "--data-dir", str(platform.process.data_dir))
    done = CliRunner().invoke(app, ["admin", *arguments, *where])
    assert not check or done.exit_code == 0, done.output
    return done.output


async def test_every_report_says_what_the_clients_were_told(platform: MoneyPlatform, tmp_path: Path) -> None:
    async with platform.client("payer") as http:
        prompts = [[5, 6, number, *range(100, 140)] for number in range(8)]
        answers = [await ask(http, prompt, max_tokens=4 + len(prompt) % 3) for prompt in [*prompts, *prompts[:3]]]
        usages = [answer.json()["usage"] for answer in answers]
        counts, due = due_of(usages)
        assert counts["cached_tokens"] > 0, "the discount is tried"
        stated = await until_billed(platform, "payer", counts["requests"])
        shown = (await http.get("/usage", params={"group_by": "model"})).json()
    for row in (stated["lines"][0], shown["data"][0], platform.admin.get("/usage?tenant=payer").json()["total"]):
        assert {name: row[name] for name in counts} == counts
        assert row["due"] == due
    await asyncio.to_thread(check_receipt, platform, answers[-1])
    await asyncio.to_thread(check_commands, platform, counts, due)
    await asyncio.to_thread(check_files, platform, tmp_path, usages, due)


def check_receipt(platform: MoneyPlatform, answer: httpx.Response) -> None:
    """What `stratos explain` says of one request is what its client was told, and what the ledger has."""
    request_id, where = answer.headers["x-request-id"], ("--data-dir", str(platform.process.data_dir))
    done = CliRunner().invoke(app, ["explain", request_id, "--json", "--key", platform.keys["payer"], *where])
    assert done.exit_code == 0, done.output
    receipt, usage = json.loads(done.output), answer.json()["usage"]
    (entry,), (generation,) = receipt["billed"], receipt["generations"]
    assert entry["due"] == due_of([usage])[1]
    assert generation["prefix_match_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert generation["numerics_id"]
    assert [attempt["outcome"] for attempt in generation["attempts"]] == ["finished"]
    shown = CliRunner().invoke(app, ["explain", request_id, "--key", platform.keys["payer"], *where]).output
    assert generation["attempts"][0]["worker"] in shown
    other = CliRunner().invoke(app, ["explain", request_id, "--key", platform.keys["resident"], *where])
    assert other.exit_code == 1


def check_commands(platform: MoneyPlatform, counts: Counter[str], due: int) -> None:
    """Without a URL: that of the running platform is found, as by `admin apply`."""
    for by, tenant in (("platform", ("--tenant", "payer")), ("owner", ())):
        text = command(platform, "statement", "--month", MONTH, *tenant, by=by)
        assert f"Statement of payer for {MONTH}" in text
        assert f"due: {money(due)}" in text
        cells = re.split(r"\s{2,}", next(line for line in text.splitlines() if line.startswith("base")))
        names = ("requests", "prompt_tokens", "cached_tokens", "output_tokens")
        assert cells[1:5] == [str(counts[name]) for name in names]
    costs = command(platform, "costs", "--month", MONTH, "--device-hour-price", "3.60", "--paid-hours", "2")
    row = re.split(r"\s{2,}", next(line for line in costs.splitlines() if line.startswith("base")))
    assert row[4] == "7.20", "all that was paid is on the one model"
    refused = command(platform, "costs", "--month", MONTH, "--device-hour-price", "1", by="owner", check=False)
    assert "role admin" in refused


def check_files(platform: MoneyPlatform, folder: Path, usages: list[dict[str, Any]], due: int) -> None:
    found = {}
    for shape in ("csv", "parquet"):
        path = folder / f"payer.{shape}"
        command(platform, "ledger", str(path), "--tenant", "payer", "--month", MONTH, "--format", shape)
        assert path.stat().st_mode & 0o077 == 0
        is_csv = shape == "csv"
        rows = list(csv.DictReader(path.read_text().splitlines())) if is_csv else read_table(path).to_pylist()
        found[shape] = sorted((r["request_id"], int(r["prompt_tokens"]), int(r["output_tokens"]), int(r["due"]))
                              for r in rows)  # fmt: skip
    assert found["csv"] == found["parquet"]
    told = Counter((usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages)
    assert Counter((prompt, output) for _, prompt, output, _ in found["csv"]) == told
    assert len({request_id for request_id, *_ in found["csv"]}) == len(usages)
    assert abs(sum(entry_due for *_, entry_due in found["csv"]) - due) <= len(usages), "each is rounded by itself"


async def test_policies_act_at_both_gateways(platform: MoneyPlatform) -> None:
    async with platform.client("policed") as http, platform.client("scored") as scored:

        async def refused() -> None:
            answer = await ask(http, {"id": "bird", "variables": {"bird": "Blue Heron"}})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter"), answer.text

        await platform.at_both("stratos_content_hits_total", refused)
        passed = await ask(http, {"id": "bird", "variables": {"bird": "wren"}})
        assert passed.status_code == 200, passed.text
        assert (await ask(scored, SCORED)).json()["error"]["code"] == "content_filter"
        assert (await ask(scored, "a harmless text")).status_code == 200
    moderated = [asked for asked in platform.scripted.asked if asked.path.endswith("/moderations")]
    assert any(SCORED in str(asked.body["input"]) for asked in moderated)


async def test_output_with_a_hit_ends_there_at_both_gateways(platform: MoneyPlatform) -> None:
    async with platform.client("payer") as free, platform.client("policed") as http:
        prompt, num_long = "The story of a", platform.num_long
        plain = (await ask(free, prompt, max_tokens=num_long)).json()["choices"][0]["text"]
        words = re.findall(r"\b[A-Za-z]{3,}\b", plain)
        word = next(word for word in words[1:] if word.lower() not in prompt.lower())
        policies = {"policies": {"words": {"words": {"w": ["blue heron", word]}, "replacement": "[cut]"}}}
        assert (await asyncio.to_thread(platform.admin.post, "/declaration", json=policies)).status_code == 200

        async def is_cut() -> bool:
            answer = (await ask(http, prompt, max_tokens=num_long)).json()
            choice, num_output = answer["choices"][0], answer["usage"]["completion_tokens"]
            if (choice["text"], choice["finish_reason"]) != ("[cut]", "content_filter"):
                return False
            assert 0 < num_output < num_long, "the worker was told to stop"
            return True

        await eventually(is_cut, "the policy acts", poll_s=0.1)
        text = ""

        async def stream_is_cut() -> bool:  # at the other gateway the policy may act a moment later
            nonlocal text
            stream = await ask(http, prompt, max_tokens=num_long, stream=True)
            events = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")]
            text = "".join(choice["text"] for event in events for choice in event["choices"])
            return text.endswith("[cut]")

        await eventually(stream_is_cut, "the policy acts on a stream", poll_s=0.1)
        assert plain.startswith(text.removesuffix("[cut]"))


@asynccontextmanager
async def slot_taken(platform: MoneyPlatform) -> AsyncIterator[None]:
    """A long request that may not leave has the one place in the batch."""
    async with platform.client("resident") as http:
        hold = asyncio.create_task(ask(http, [9, 9, 9], max_tokens=3000))
        try:
            await eventually(lambda: asyncio.to_thread(platform.num_running), "the slot is taken", poll_s=0.05)
            yield
        finally:
            hold.cancel()
            await asyncio.gather(hold, return_exceptions=True)


async def test_by_the_routers_estimate_requests_go_outside_and_into_every_report(platform: MoneyPlatform) -> None:
    calls_before = len(platform.external_calls())
    async with platform.client("resident") as resident, platform.client("roamer") as roamer:
        here = [await roam(roamer, f"here {number}") for number in range(3)]  # this is the router's pace
        assert all("x-stratos-served-by" not in answer.headers for answer in here)
        async with slot_taken(platform):
            waiting = [asyncio.create_task(ask(resident, f"wait {n}", max_tokens=3)) for n in range(12)]
            await eventually(lambda: asyncio.to_thread(is_queued, platform, 12), "they wait", poll_s=0.05)
            outside: list[httpx.Response] = []
            while not all("the expected wait is" in platform.log(name) for name in GATEWAYS):
                outside.append(await roam(roamer, f"to the outside {len(outside)}"))
                assert len(outside) < 60, "one gateway was never told of the router's estimate"
            assert {answer.headers.get("x-stratos-served-by") for answer in outside} == {"external"}
            assert {answer.json()["choices"][0]["text"] for answer in outside} == {"from outside"}
            assert not any(task.done() for task in waiting), "those that must stay wait here"
        stayed = await asyncio.gather(*waiting)
    assert {answer.status_code for answer in stayed} == {200}
    assert not any("x-stratos-served-by" in answer.headers for answer in stayed)
    asked = platform.external_calls()[calls_before:]
    assert len(asked) == len(outside)
    assert all(call.body["prompt"].startswith("to the outside") for call in asked), "nothing of a resident tenant"
    usages = [answer.json()["usage"] for answer in [*here, *outside]]
    counts, due = due_of(usages)
    (line,) = (await until_billed(platform, "roamer", counts["requests"]))["lines"]
    assert (line["externals"], line["due"]) == (len(outside), due)
    assert {name: line[name] for name in counts} == counts
    assert [usage["completion_tokens"] for usage in usages[3:]] == [EXTERNAL_USAGE["completion_tokens"]] * len(outside)
    await asyncio.to_thread(check_external_costs, platform, len(outside))


async def roam(http: httpx.AsyncClient, prompt: str, **body: Any) -> httpx.Response:
    """A request with nothing in it that other servers may lack, so that it may leave."""
    return await http.post("/completions", json={"model": "base", "prompt": prompt, "max_tokens": 3, **body})


def is_queued(platform: MoneyPlatform, wanted: int) -> bool:
    return platform.num_queued() == wanted


def check_external_costs(platform: MoneyPlatform, num_outside: int) -> None:
    text = command(platform, "statement", "--month", MONTH, "--tenant", "roamer")
    assert f"base ({num_outside} at the external endpoint)" in text
    (row,) = platform.admin.get("/costs", params={"month": MONTH, "hour_price": "0"}).json()["data"]
    assert row["external_cost"] == num_outside * EXTERNAL_COST
    assert row["margin"] == row["earned"] - row["external_cost"]
    assert money(num_outside * EXTERNAL_COST) in command(
        platform, "costs", "--month", MONTH, "--device-hour-price", "0"
    )
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    entries = platform.admin.get("/ledger", params={"tenant": "roamer", "day": today}).json()["data"]
    assert Counter(entry["outcome"] for entry in entries) == {"finished": 3, "external": num_outside}
    assert {entry["external_cost"] for entry in entries} == {0, EXTERNAL_COST}
    headers = {"authorization": f"Bearer {platform.keys['owner']}"}
    own = platform.admin.get("/ledger", params={"day": today}, headers=headers).json()["data"]
    assert {entry["external_cost"] for entry in own} == {None}, "what the platform pays is not for tenants"


async def test_a_stream_that_has_begun_never_leaves(platform: MoneyPlatform) -> None:
    """Its worker is killed in the middle, and it waits for the next one."""
    calls_before, received, is_killed = len(platform.external_calls()), "", False
    async with platform.client("roamer") as http:
        body = {"model": "base", "prompt": "a long story", "max_tokens": platform.num_long, "temperature": 0}
        whole = (await http.post("/completions", json=body)).json()["choices"][0]["text"]
        body["stream"] = True
        async with http.stream("POST", "/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    received += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
                if len(received) > 20 and not is_killed:
                    is_killed = True
                    processes = await asyncio.to_thread(platform.process.processes)
                    os.kill(processes["decode-0"]["pid"], signal.SIGKILL)
    assert is_killed
    assert received == whole
    assert len(platform.external_calls()) == calls_before
    assert "x-stratos-served-by" not in answer.headers


async def test_a_deleted_tenant_leaves_nothing_in_the_workers_and_its_money_under_its_id(
    platform: MoneyPlatform,
) -> None:
    async with platform.client("leaver") as leaver, platform.client("payer") as payer:
        prompt = [11, 12, *range(200, 360)]
        neighbours = (await ask(payer, prompt)).json()["usage"]
        before = await settled_blocks(platform)
        for number in range(2):
            assert (await ask(leaver, [number, *prompt])).status_code == 200
        assert (await settled_blocks(platform))[0] < before[0], "control: it took blocks"
        await until_billed(platform, "leaver", 2)
        answer = await asyncio.to_thread(platform.admin.delete, "/tenants/leaver")
        tenant_id = answer.json()["ledger"]

        async def is_dropped() -> bool:
            return await settled_blocks(platform) == before

        await eventually(is_dropped, "its blocks are free, and those of others are not", poll_s=0.2)
        again = (await ask(payer, prompt)).json()["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] > 0
        assert neighbours["prompt_tokens"] == again["prompt_tokens"]
        assert (await ask(leaver, [3, 4])).status_code == 401

    listed = (await asyncio.to_thread(platform.admin.get, "/ledger/tenants")).json()["data"]
    assert {"id": tenant_id, "name": ""} in listed
    assert "leaver" not in {tenant["name"] for tenant in listed}
    await until_billed(platform, tenant_id, 2)


async def test_an_answer_is_computed_once_for_both_gateways_and_lies_open_nowhere(platform: MoneyPlatform) -> None:
    """Redis with its own files, the object store, copies, spools, logs: none has texts of a tenant, or its key."""
    redis_url, prompt = platform.process.facts()["redis_url"], "the zebracorn ledger of the north"

    async def is_shared() -> bool:
        async with open_redis(redis_url) as redis:
            return bool(await redis.hlen("stratos:answers"))

    async with platform.client("keeper") as http:
        first = (await ask(http, prompt, max_tokens=16)).json()
        await eventually(is_shared, "the answer is in Redis")
        again = [(await ask(http, prompt, max_tokens=16)).json() for _ in range(8)]
    assert {answer["choices"][0]["text"] for answer in (first, *again)} == {first["choices"][0]["text"]}
    statement = await until_billed(platform, "keeper", 9)
    assert sum(line["replays"] for line in statement["lines"]) == 8, "at either gateway"
    planted = [prompt, platform.keys["keeper"]]
    assert await open_places(planted, redis_url, platform.process.data_dir) == []
    (platform.process.run_dir() / "logs" / "control.log").write_text(prompt)
    assert len(await open_places(planted, redis_url, platform.process.data_dir)) == 1, "the control is found"


async def settled_blocks(platform: MoneyPlatform) -> tuple[int, int]:
    """Free and cached blocks of the worker, once it holds no others; asked of itself, as what routers know is older."""
    address = (await asyncio.to_thread(platform.process.processes))["decode-0"]["address"]
    dialer = dial_as(platform.process.facts()["tls_folder"], PeerRole.ROUTER)
    found: list[int] = []

    async def is_settled() -> bool:
        async with dialer.channel(address, ANY_WORKER) as peer:
            watch = worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(worker_pb2.WatchStatusRequest())
            blocks = WORKER_STATUS.from_pb(await watch.read()).engine.blocks
        found[:] = [blocks.free, blocks.cached]
        return sum(found) == blocks.total

    await eventually(is_settled, "nothing runs", poll_s=0.1)
    return found[0], found[1]
