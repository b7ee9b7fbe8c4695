"""A gateway over a real Redis and scripted workers: what gets into the ledger, once, and what a tenant may spend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from stratos.common.clock import Clock, FakeClock, SystemClock
from stratos.core.ledger.entry import LedgerEntry, RequestOutcome
from stratos.core.ledger.prefix_hashes import split_prefix_hashes
from stratos.core.ledger.pricing import TokenCounts
from stratos.core.requests.pins import CacheWrites
from stratos.core.tenancy.plan import CachePolicy
from stratos.core.tenancy.prices import Budget, CachePrices, Discounts, Price
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.ledger.billing import LedgerAccess
from stratos_gateway.ledger.readings import UsageReadings
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY, PLAN
from tests.support.worlds.gateway_world import World, gateway_world, say

PRICED = replace(
    PLAN,
    prices={"default": Price(prompt=2_000_000, cached=500_000, output=6_000_000)},
    discounts=Discounts(credit_percent=10),
)
QUICK: dict[str, Any] = {"interval_s": 0.02, "count_wait_s": 0.3, "budget_interval_s": 0.05}
TODAY = "{:%Y-%m-%d}"


@dataclass
class Bench:
    world: World
    store: LedgerStore
    reader: UsageReader

    async def entries(self, tenant: str = "one") -> list[LedgerEntry]:
        day = TODAY.format(datetime.now(UTC))
        return [entry async for entry in self.reader.entries(tenant, day)]

    async def wait_entries(self, number: int) -> list[LedgerEntry]:
        while len(found := await self.entries()) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert len(found) == number
        return found

    async def complete(self, **fields: Any) -> httpx.Response:
        body = {"model": "base", "prompt": [5, 6, 7, 8], "temperature": 0, **fields}
        return await self.world.http.post("/v1/completions", json=body)


@asynccontextmanager
async def bench_at(url: str, num_workers: int = 1, clock: Clock | None = None, **ledger: Any) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(open_redis(url))
        store = LedgerStore(redis, RecordStoreConfig())
        reader = UsageReader(redis, RecordStoreConfig())
        readings = UsageReadings(reader, clock or SystemClock(), 60)
        access = LedgerAccess(store=store, plan_of=lambda tenant: PRICED, readings=readings)
        world = await stack.enter_async_context(
            gateway_world(num_workers, ledger_access=access, ledger={**QUICK, **ledger})
        )
        yield Bench(world, store, reader)


@pytest.fixture
async def bench(redis_url: str) -> AsyncIterator[Bench]:
    async with bench_at(redis_url) as made:
        made.world.keys.tenants[KEY] = replace(made.world.keys.tenants[KEY], plan=PRICED)
        yield made


async def test_a_finished_request_is_billed_as_its_client_was_told(bench: Bench) -> None:
    bench.world.worker.cached_tokens = 2
    usage = (await bench.complete(max_tokens=2, n=3)).json()["usage"]
    (entry,) = await bench.wait_entries(1)
    assert usage["completion_tokens"] == 6
    assert entry.counts == TokenCounts(num_prompt=4, num_cached=2, num_output=6)
    assert (entry.amounts.gross, entry.amounts.cached_discount, entry.amounts.due) == (44, 3, 41)
    assert (entry.outcome, entry.is_kept, entry.tag.key_id) == (RequestOutcome.FINISHED, True, "one")
    assert entry.stages.device_us == 5000
    assert entry.times.ttft_us is not None
    await eventually(lambda: bench.world.worker.acknowledged == [entry.request_id], "the worker may forget it")


async def test_a_kept_prompt_costs_what_its_plan_says(bench: Bench) -> None:
    prices = CachePrices(write_5m_percent=125, write_24h_percent=300, read_percent=10)
    bench.world.keys.tenants[KEY] = replace(
        bench.world.keys.tenants[KEY], plan=replace(PRICED, cache_prices=prices)
    )  # fmt: skip
    worker, prompt = bench.world.worker, list(range(100))
    worker.cached_tokens, worker.kept_tokens, worker.pinned_tokens = 20, 20, 80
    await bench.complete(prompt=prompt, max_tokens=1)
    (plain,) = await bench.wait_entries(1)
    await bench.complete(prompt=prompt, max_tokens=1, prompt_cache_retention="24h")
    kept = next(entry for entry in await bench.wait_entries(2) if entry.request_id != plain.request_id)
    assert kept.counts == replace(plain.counts, writes=CacheWrites(num_24h=60))
    # 2 micro-units a token: 60 more tokens' worth twice; 20 read ones at a tenth
    assert (kept.amounts.write_surcharge, plain.amounts.write_surcharge) == (240, 0)
    assert (plain.amounts.gross, plain.amounts.net) == (206, 206 - 36)
    assert (kept.amounts.gross, kept.amounts.net) == (206 + 240, 206 + 240 - 36)
    worker.cached_tokens = 80  # what was sent without a mark before is read, and its keeping is paid for
    before = {plain.request_id, kept.request_id}
    await bench.complete(prompt=prompt, max_tokens=1, prompt_cache_retention="24h")
    again = next(entry for entry in await bench.wait_entries(3) if entry.request_id not in before)
    assert (again.amounts.write_surcharge, again.amounts.gross, again.amounts.net) == (240, 446, 446 - 144)


async def test_entries_tell_which_prompts_began_alike_and_nothing_of_others(bench: Bench) -> None:
    long = [7 + n % 300 for n in range(1500)]
    prompts = [long, [*long[:1024], 5, *long[1024:1200]], [6, *long], long[:500]]
    for number, prompt in enumerate(prompts):
        assert (await bench.complete(prompt=prompt, max_tokens=2)).status_code == 200
        await bench.wait_entries(number + 1)
    bench.world.keys.change_plan(KEY, cache_policy=CachePolicy.OFF)
    await bench.complete(prompt=long, max_tokens=2)
    found = {e.request_id: split_prefix_hashes(e.prefix_hashes) for e in await bench.wait_entries(5)}
    first, fork, other, short, alone = (found[submit.request_id] for submit in bench.world.worker.submits)
    assert first == fork
    assert len({*first, *other, *alone}) == 6
    assert short == []


async def test_each_prompt_is_an_entry_and_a_stop_string_ends_what_is_charged(bench: Bench) -> None:
    bench.world.worker.script = say("hello world and more of it")
    answer = (await bench.complete(prompt=[[5], [6, 7]], stop=["world"], max_tokens=50)).json()
    entries = await bench.wait_entries(2)
    assert sum(entry.counts.num_output for entry in entries) == answer["usage"]["completion_tokens"]
    assert sorted(entry.counts.num_prompt for entry in entries) == [1, 2]


async def test_a_client_that_leaves_a_stream_is_billed_for_what_was_written(bench: Bench) -> None:
    worker = bench.world.worker
    worker.step_s, worker.script = 0.01, lambda submit, choice: [9] * 1000
    received: list[int] = []
    body = {"model": "base", "prompt": [5, 6], "max_tokens": 900, "stream": True, "return_token_ids": True}
    async with bench.world.http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            received += [1] if '"token_ids"' in line else []
            if len(received) == 5:
                break
    (entry,) = await bench.wait_entries(1)
    assert entry.outcome is RequestOutcome.ABORTED
    assert 5 <= entry.counts.num_output < 900
    assert entry.counts.num_prompt == 2


async def test_a_stream_that_is_left_before_its_first_byte_pays_for_its_prompt(bench: Bench) -> None:
    """The text is held back, since it may become a stop string; the next request with the prompt finds it cached."""
    worker = bench.world.worker
    worker.step_s, worker.script = 0.05, say("a " * 100)
    asking = asyncio.create_task(bench.complete(prompt=[5, 6], max_tokens=900, stream=True, stop=["a " * 120]))
    await eventually(lambda: worker.step >= 3 or asking.done(), "tokens have come")
    assert not asking.done()
    asking.cancel()
    (entry,) = await bench.wait_entries(1)
    assert entry.outcome is RequestOutcome.ABORTED
    assert entry.counts.num_prompt == 2
    assert 0 < entry.counts.num_output < 100


async def test_a_client_that_leaves_during_the_prefill_pays_for_what_was_computed_of_its_prompt(bench: Bench) -> None:
    worker = bench.world.worker
    worker.hang_after = 0
    asking = asyncio.create_task(bench.complete(prompt=[5, 6, 7, 8], max_tokens=9, stream=True))
    await eventually(lambda: worker.submits, "the worker has it")
    asking.cancel()
    await eventually(lambda: worker.cancels, "the worker is told")
    await worker.count(worker.sessions[-1], worker.submits[-1], 0, num_computed_tokens=3)
    (entry,) = await bench.wait_entries(1)
    assert (entry.outcome, entry.counts) == (RequestOutcome.ABORTED, TokenCounts(num_prompt=3))
    assert entry.amounts.due == 3 * 2


async def test_a_count_that_comes_after_the_entry_adds_its_device_time(bench: Bench) -> None:
    await bench.complete(max_tokens=2)
    (entry,) = await bench.wait_entries(1)
    assert entry.stages.by_attempt == ((0, 5000),)
    worker = bench.world.worker
    late = worker.submits[-1].__class__()
    late.CopyFrom(worker.submits[-1])
    late.attempt = 1
    await worker.count(worker.sessions[-1], late, 2)

    async def device_us() -> int:
        return (await bench.entries())[0].stages.device_us

    await eventually(lambda: worker.acknowledged.count(entry.request_id) == 2, "the late one is acknowledged")
    assert await device_us() == 10_000
    total = (await bench.world.http.get("/v1/usage")).json()["total"]
    assert (total["device_us"], total["requests"], total["due"]) == (10_000, 1, entry.amounts.due)


async def test_what_the_platform_failed_costs_nothing_and_breaks_the_promise(redis_url: str) -> None:
    """Both workers skip a token, which no recovery can mend: what was decoded before reached no client."""
    async with bench_at(redis_url, num_workers=2) as bench:
        bench.world.keys.tenants[KEY] = replace(bench.world.keys.tenants[KEY], plan=PRICED)
        for worker in bench.world.workers:
            worker.script, worker.skip_after = (lambda submit, choice: [9] * 1000), 3
        assert (await bench.complete(max_tokens=900)).status_code == 503
        (entry,) = await bench.wait_entries(1)
        assert (entry.outcome, entry.counts, entry.is_kept) == (RequestOutcome.FAILED, TokenCounts(), False)


async def test_a_recovery_charges_the_prompt_once_and_no_token_twice(redis_url: str) -> None:
    async with bench_at(redis_url, num_workers=2) as bench:
        first, second = bench.world.workers
        first.script = second.script = lambda submit, choice: [9] * 1000
        first.die_after, first.cached_tokens, second.cached_tokens = 3, 2, 0
        usage = (await bench.complete(max_tokens=8)).json()["usage"]
        (entry,) = await bench.wait_entries(1)
        assert usage["completion_tokens"] == entry.counts.num_output == 8
        assert entry.counts.num_prompt == 4
        assert second.submits[-1].attempt == 1


async def test_counts_of_another_gateway_are_taken_over_once(bench: Bench) -> None:
    await bench.complete(max_tokens=2)
    worker = bench.world.worker
    lost = worker.submits[-1].__class__()
    lost.CopyFrom(worker.submits[-1])
    lost.request_id, lost.attempt = "gen-lost", 1
    for num_output in (7, 7):
        await worker.count(worker.sessions[-1], lost, num_output)
    entries = {entry.request_id: entry for entry in await bench.wait_entries(2)}
    assert entries["gen-lost"].outcome is RequestOutcome.RECOVERED
    assert entries["gen-lost"].counts == TokenCounts(num_prompt=4, num_output=7)
    assert entries["gen-lost"].amounts.due == 8 + 42
    await eventually(lambda: "gen-lost" in worker.acknowledged, "acknowledged")
    await worker.count(worker.sessions[-1], lost, 9)
    await eventually(lambda: worker.acknowledged.count("gen-lost") > 1, "acknowledged again")
    assert {e.request_id: e.counts for e in await bench.entries()}["gen-lost"].num_output == 7


async def test_the_usage_of_a_tenant_is_its_own_alone(bench: Bench) -> None:
    await bench.complete(max_tokens=2)
    await bench.wait_entries(1)
    answer = (await bench.world.http.get("/v1/usage", params={"group_by": "day,model,key,adapter"})).json()
    (row,) = answer["data"]
    assert (row["model"], row["key_id"], row["adapter"], row["requests"]) == ("base", "one", "", 1)
    assert (row["prompt_tokens"], row["output_tokens"], row["due"]) == (4, 2, 8 + 12)
    assert answer["total"]["due"] == 20
    text = (await bench.world.http.get("/v1/usage", params={"format": "csv"})).text
    assert text.splitlines()[0].startswith("day,model,requests,")
    assert len(text.splitlines()) == 2
    other = {"authorization": "Bearer sk-two"}
    assert (await bench.world.http.get("/v1/usage", headers=other)).json()["data"] == []


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"start": "2026-11"}, "start"),
        ({"start": "2026-11-31"}, "start"),
        ({"start": "2026-11-02", "end": "2026-11-01"}, "end"),
        ({"start": "2020-01-01", "end": "2026-01-01"}, "end"),
        ({"group_by": "tenant"}, "group_by"),
        ({"format": "xml"}, "format"),
    ],
)
async def test_a_wrong_question_is_refused(bench: Bench, params: dict[str, str], param: str) -> None:
    answer = await bench.world.http.get("/v1/usage", params=params)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_tenant_asks_for_its_usage_at_a_rate_that_is_its_own(redis_url: str) -> None:
    clock = FakeClock()
    async with bench_at(redis_url, clock=clock) as bench:
        answers = [await bench.world.http.get("/v1/usage") for _ in range(11)]
        assert [answer.status_code for answer in answers] == [200] * 10 + [429]
        assert answers[-1].json()["error"]["code"] == "rate_limit_exceeded"
        assert answers[-1].headers["retry-after"] == "1"
        other = {"authorization": "Bearer sk-two"}
        assert (await bench.world.http.get("/v1/usage", headers=other)).status_code == 200
        clock.advance(1.0)
        answers = [await bench.world.http.get("/v1/usage") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]


async def test_a_budget_warns_and_then_refuses(bench: Bench) -> None:
    bench.world.keys.change_plan(KEY, budget=Budget(soft=20, hard=40))
    first = await bench.complete(max_tokens=2)
    assert "x-budget-warning" not in first.headers
    await bench.wait_entries(1)
    second = await bench.complete(max_tokens=2)
    assert second.headers["x-budget-warning"] == "soft"
    await bench.wait_entries(2)
    refused = await bench.complete(max_tokens=2)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false"
    assert bench.world.metric("stratos_budget_used_ratio", tenant="one") == 1
    assert bench.world.metric("stratos_budget_alerts_total", tenant="one", level="100 percent") == 1
    assert len(await bench.entries()) == 2


async def test_an_equal_request_gets_the_answer_again_at_the_discount_of_its_plan(bench: Bench) -> None:
    worker = bench.world.worker
    discounts = Discounts(replay_percent=75)
    bench.world.keys.change_plan(KEY, response_cache=True, response_ttl_s=3600, discounts=discounts)
    first = await bench.complete(max_tokens=4, n=2)
    again = await bench.complete(max_tokens=4, n=2)
    shown = [{**answer.json(), "id": "", "created": 0} for answer in (first, again)]
    assert shown[0] == shown[1]
    assert len(worker.submits) == 1
    stream = await bench.complete(max_tokens=4, n=2, stream=True, stream_options={"include_usage": True})
    assert stream.text.endswith("data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")]
    texts = {c["index"]: c["text"] for event in events for c in event["choices"]}
    assert texts == {choice["index"]: choice["text"] for choice in first.json()["choices"]}
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert len(worker.submits) == 1
    entries = await bench.wait_entries(3)
    replayed = [entry for entry in entries if entry.outcome is RequestOutcome.REPLAYED]
    assert [(e.amounts.net, e.amounts.replay_discount, e.counts.num_output) for e in replayed] == [(14, 42, 8)] * 2
    total = (await bench.world.http.get("/v1/usage")).json()["total"]
    assert (total["requests"], total["replays"], total["replay_discount"]) == (3, 2, 84)
    assert bench.world.metric("stratos_response_cache_requests_total", outcome="hit") == 2


async def test_only_equal_requests_with_a_determined_output_share_an_answer(bench: Bench) -> None:
    worker = bench.world.worker
    bench.world.keys.change_plan(KEY, response_cache=True)
    seen = 0
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, False), ({}, True), ({"prompt": [5, 6]}, False), ({"stop": ["x"]}, False), ({"temperature": 0.5}, False),
        ({"temperature": 0.5}, False), ({"temperature": 0.5, "seed": 1}, False),
        ({"temperature": 0.5, "seed": 1}, True),
        ({"temperature": 0.5, "seed": 2}, False), ({"seed": 9}, True),
    ]  # fmt: skip
    for fields, is_hit in cases:
        await bench.complete(max_tokens=3, **fields)
        seen += not is_hit
        assert len(worker.submits) == seen, fields
    body = {"model": "base", "prompt": [5, 6, 7, 8], "temperature": 0, "max_tokens": 3}
    await bench.world.http.post("/v1/completions", json=body, headers={"authorization": "Bearer sk-two"})
    assert len(worker.submits) == seen + 1, "another tenant has answers of its own"
    bench.world.keys.change_plan(KEY, cache_policy=CachePolicy.OFF)
    await bench.complete(max_tokens=3)
    await bench.complete(max_tokens=3)
    assert len(worker.submits) == seen + 3


async def test_redis_away_fills_the_spool_which_is_replayed_once(redis_server: RedisServer, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    async with bench_at(redis_server.url, spool_path=spool) as bench:
        redis_server.kill()
        for _ in range(3):
            assert (await bench.complete(max_tokens=2)).status_code == 200
        await eventually(lambda: spool.stat().st_size > 500, "entries in the spool")
        assert bench.world.worker.acknowledged == []
        redis_server.start()
        entries = await bench.wait_entries(3)
        assert sum(entry.counts.num_output for entry in entries) == 6
        await eventually(lambda: spool.stat().st_size == 0, "an empty spool")
        await eventually(lambda: len(bench.world.worker.acknowledged) == 3, "all acknowledged")
