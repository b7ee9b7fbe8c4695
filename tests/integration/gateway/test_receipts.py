"""Receipts over HTTP: what a tenant can read of its own requests, however they ended, at any gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from stratos.api.worker.v1 import decode_pb2
from stratos.common.errors import Overloaded, QueueTimeout
from stratos.common.shed_reason import ShedReason
from stratos.core.ledger.receipt import SECTIONS, request_receipt
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.receipt_store import ReceiptStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.ledger.billing import LedgerAccess
from stratos_gateway.receipts.desk import MAX_REFUSALS_PER_S, ReceiptDesk
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY, OTHER_KEY
from tests.support.worlds.gateway_world import World, gateway_world, make_adapter, say
from tests.support.worlds.usage_counts import ENTRY

CONFIG = RecordStoreConfig()


@asynccontextmanager
async def receipt_world(url: str, num_workers: int = 1) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        redis: Redis = await stack.enter_async_context(open_redis(url))
        receipts = ReceiptStore(redis, CONFIG, 2**20, 3600)
        access = LedgerAccess(store=LedgerStore(redis, CONFIG), plan_of=lambda tenant: None, receipts=receipts)
        quick = {"interval_s": 0.02, "count_wait_s": 0.2}
        yield await stack.enter_async_context(gateway_world(num_workers, ledger_access=access, ledger=quick))


@pytest.fixture
async def world(redis_url: str) -> AsyncIterator[World]:
    async with receipt_world(redis_url, num_workers=2) as made:
        yield made


async def complete(world: World, request_id: str, **fields: Any) -> int:
    body = {"model": "base", "prompt": [5, 6, 7, 8], "max_tokens": 6, **fields}
    answer = await world.http.post("/v1/completions", json=body, headers={"x-request-id": request_id})
    assert answer.headers["x-request-id"] == request_id
    return answer.status_code


async def receipt(world: World, request_id: str, *, is_billed: bool = True) -> dict[str, Any]:
    """The receipt, once it is there, and its entries in the ledger are."""
    found: dict[str, Any] = {}

    async def is_there() -> bool:
        answer = await world.http.get(f"/v1/requests/{request_id}/receipt")
        found.update(answer.json() if answer.status_code == 200 else {})
        return answer.status_code == 200 and bool(found["billed"]) >= is_billed

    await eventually(is_there, "the receipt is written")
    return found


async def test_a_receipt_says_where_a_request_ran_what_it_claimed_and_what_was_billed(world: World) -> None:
    for worker in world.workers:
        worker.script, worker.cached_tokens = say("hello"), 2
    world.keys.change_plan(KEY, tokens_per_min=600, max_sequences=8)
    assert await complete(world, "mine-1") == 200
    found = await receipt(world, "mine-1")
    absent = ("choice", "superseded", "entries")
    assert list(found) == ["object", "id", *[name for name in SECTIONS if name not in absent], "billed"]
    assert found["request"]["model"] == "base"
    assert {limit["kind"]: limit["claimed"] for limit in found["limits"]} == {"sequences": 1, "tokens": 10}
    (generation,) = found["generations"]
    assert (generation["prefix_match_tokens"], generation["first_missed_token"]) == (2, 2)
    (attempt,) = generation["attempts"]
    assert attempt["outcome"] == "finished"
    assert attempt["worker"] in {"decode-0", "decode-1"}
    assert (found["answer"]["status"], found["answer"]["outcome"]) == (200, "finished")
    (entry,) = found["billed"]
    assert (entry["request_id"], entry["cached_tokens"]) == (generation["id"], 2)
    assert entry["external_cost"] is None, "what the platform pays is not the tenant's"


async def test_a_receipt_says_what_the_first_placements_were_chosen_from(world: World) -> None:
    choice = {"scores": {"decode-0": 0.75}, "rejections": {"decode-9": "kv_room"}, "num_unnamed": 4}
    world.router.choice = {**choice, "queue_samples": (0, 3, 250, 1)}
    for worker in world.workers:
        worker.script = say("hello")
    assert await complete(world, "chosen") == 200
    ((attempt,),) = [one["attempts"] for one in (await receipt(world, "chosen"))["generations"]]
    assert attempt["queue"] == [[0, 3], [250, 1]]
    assert attempt["candidates"] == {"decode-0": 0.75}
    assert attempt["rejected"] == {"decode-9": "kv_room"}
    assert attempt["others"] == 4
    assert await complete(world, "many", prompt=[[5, 6, 7, 8]] * 6) == 200
    told = ["candidates" in one["attempts"][0] for one in (await receipt(world, "many"))["generations"]]
    assert told == [True] * 4 + [False] * 2, "names are long, and a receipt is bounded"


async def test_a_receipt_says_how_an_answer_was_constrained_and_what_was_ignored(world: World) -> None:
    for worker in world.workers:
        worker.script = say("ab")
    assert await complete(world, "free") == 200
    assert await complete(world, "bound", structured_outputs={"regex": "[ab]+"}, store=True) == 200
    assert not {"constrained", "ignored"} & set((await receipt(world, "free"))["request"])
    found = (await receipt(world, "bound"))["request"]
    assert (found["constrained"], found["ignored"]) == ("regex", ["store"])


async def test_a_receipt_says_what_is_kept_of_a_prompt_and_where_the_cache_missed(world: World) -> None:
    for worker in world.workers:
        worker.cached_tokens, worker.kept_tokens, worker.pinned_tokens = 16, 16, 48
    prompt = list(range(64))
    assert await complete(world, "kept", prompt=prompt, prompt_cache_retention="24h") == 200
    found = await receipt(world, "kept")
    [told], [billed] = found["generations"], found["billed"]
    assert told["first_missed_token"] == told["prefix_match_tokens"] == 16
    assert (told["breakpoints"], told["pinned_tokens"], told["cache_write_tokens"]) == ([[64, 86400]], 48, 32)
    assert (billed["cache_write_24h_tokens"], billed["write_surcharge"]) == (32, 0)
    assert await complete(world, "plain", prompt=prompt) == 200
    assert "breakpoints" not in (await receipt(world, "plain"))["generations"][0]


async def test_a_receipt_says_by_which_way_and_how_long_a_prompt_came_and_which_adapter_it_had(world: World) -> None:
    world.registry.adapters = {"": [make_adapter("tone")]}
    for worker in world.workers:
        worker.prefill = {
            "prefill_path": decode_pb2.PREFILL_PATH_HANDOFF, "prefill_worker_id": "prefill-7", "queue_ns": 1_000_000,
            "num_transferred_tokens": 3, "num_recomputed_tokens": 1, "prefill_ns": 20_000_000, "transfer_ns": 5_000_000,
        }  # fmt: skip
    assert await complete(world, "handed", model="tone") == 200
    [told] = (await receipt(world, "handed"))["generations"]
    assert (told["prefill_path"], told["prefill_worker"]) == ("handoff", "prefill-7")
    assert (told["queue_us"], told["prefill_us"], told["transfer_us"]) == (1_000, 20_000, 5_000)
    assert (told["transferred_tokens"], told["recomputed_tokens"]) == (3, 1)
    assert told["adapter_digest"] == "digest-of-tone"


async def test_a_recovery_is_told_by_its_attempts(world: World) -> None:
    first, second = world.workers
    first.script = second.script = lambda submit, choice: [9] * 20
    first.die_after = 3
    assert await complete(world, "moved", max_tokens=20) == 200
    (generation,) = (await receipt(world, "moved"))["generations"]
    assert [attempt["worker"] for attempt in generation["attempts"]] == ["decode-0", "decode-1"]
    assert [attempt["cause"] for attempt in generation["attempts"]] == ["broken", None]
    assert [attempt["output_tokens"] for attempt in generation["attempts"]] == [3, 17]


async def test_a_refused_request_has_its_receipt_with_the_limit_that_refused_it(world: World) -> None:
    world.keys.change_plan(KEY, requests_per_min=60, burst_s=1)
    assert [await complete(world, f"burst-{number}") for number in range(2)] == [200, 429]
    found = await receipt(world, "burst-1", is_billed=False)
    assert found["answer"]["error"] == "rate_limit_exceeded"
    assert found["answer"]["status"] == 429
    (limit,) = found["limits"]
    assert limit["kind"] == "requests"
    assert limit["left"] < 1


async def test_a_request_that_a_full_system_refused_says_why_everywhere(world: World) -> None:
    world.router.errors = [Overloaded("full", reason=ShedReason.MEMORY_PRESSURE)]
    body = {"model": "base", "prompt": [5, 6, 7, 8], "max_tokens": 6}
    refused = await world.http.post("/v1/completions", json=body, headers={"x-request-id": "shed"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert refused.headers["x-stratos-shed-reason"] == "memory_pressure"
    answer = (await receipt(world, "shed", is_billed=False))["answer"]
    assert (answer["error"], answer["shed_reason"]) == ("overloaded", "memory_pressure")
    assert world.metric("stratos_requests_shed_total", reason="memory_pressure") == 1


async def test_a_refused_request_says_how_many_were_before_it_over_time(world: World) -> None:
    late = QueueTimeout("late")
    late.queue_samples = (0, 7, 250, 3, 900, 2)
    world.router.errors = [late]
    assert await complete(world, "late") == 503
    answer = (await receipt(world, "late", is_billed=False))["answer"]
    assert (answer["error"], answer["queue"]) == ("queue_timeout", [[0, 7], [250, 3], [900, 2]])


async def test_another_tenants_receipt_is_as_unknown_as_one_that_never_was(world: World) -> None:
    assert await complete(world, "mine-2") == 200
    await receipt(world, "mine-2")
    path, headers = "/v1/requests/mine-2/receipt", {"authorization": f"Bearer {OTHER_KEY}"}
    stranger = await world.http.get(path, headers=headers)
    never = await world.http.get("/v1/requests/never/receipt")
    assert (stranger.status_code, never.status_code) == (404, 404)
    assert stranger.json()["error"]["message"] == never.json()["error"]["message"]


async def test_any_gateway_finds_it_and_no_text_is_in_it(world: World, redis_url: str) -> None:
    planted = "kumquat-marmalade"
    world.worker.script = say(planted)
    assert await complete(world, "mine-3", prompt=planted, user=planted, metadata={"k": planted}) == 200
    async with receipt_world(redis_url) as other:
        assert planted not in str(await receipt(other, "mine-3"))


async def test_a_request_whose_gateway_died_has_the_receipt_of_its_entry_until_its_own_is_found(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        store = ReceiptStore(redis, CONFIG, 2**20, 3600)
        desk, tag = ReceiptDesk(store, 0.01), replace(ENTRY.tag, http_request_id="orphan")
        desk.put(request_receipt("acme", "waits", {"answer": {"outcome": "finished"}}))
        await desk.before_entries(True, [replace(ENTRY, tag=tag)])
        assert await store.find("acme", "waits") is not None, "its entry is about to be written"
        assert await store.find("acme", "orphan") is None, "it ended here, and was put, if there is one"
        await desk.before_entries(False, [replace(ENTRY, tag=tag), ENTRY])  # no client asked for the second
        found = await store.find("acme", "orphan")
        desk.put(request_receipt("acme", "orphan", {"answer": {"outcome": "finished", "status": 200}}))
        await desk.turn()
        await desk.before_entries(False, [replace(ENTRY, tag=tag)])
        own = await store.find("acme", "orphan")
    assert found is not None
    assert own is not None
    assert found["answer"] == {"outcome": "finished"}
    assert own["answer"] == {"outcome": "finished", "status": 200}


def test_refusals_by_the_thousand_push_out_nobody() -> None:
    class Nowhere:
        async def put(self, receipts: Any) -> None: ...

    desk = ReceiptDesk(Nowhere(), 1.0)
    assert sum(desk.takes_refusal(7.0 + number / 1000) for number in range(1000)) == MAX_REFUSALS_PER_S
    assert desk.takes_refusal(8.0)
