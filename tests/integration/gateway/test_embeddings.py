"""/v1/embeddings of a real gateway in front of real prefill workers with fake engines, and scripted ones that fail."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stratos.api.worker.v1 import embed_pb2
from stratos.common.clock import SystemClock
from stratos.common.errors import BadRequest, Busy, Draining, FeatureUnavailable
from stratos.core.ledger.entry import LedgerEntry
from stratos.core.placement import Outcome, Work, WorkerRole
from stratos.core.requests.embedding import EmbedCall, PoolingKind
from stratos.core.requests.terms import RequestTerms
from stratos.engine.fake.pooling import fake_embedding
from stratos.engine.fake.runner import fake_kv
from stratos.rpc.codec.placement import placement_request_to_part
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.embedding.client import EmbeddingClient
from stratos_gateway.embedding.run import MAX_GROUP_INPUTS
from stratos_gateway.ledger.billing import LedgerAccess
from tests.support.fakes.scripted_embedder import ScriptedEmbedder
from tests.support.fakes.shut_gate import ShutGate
from tests.support.paths import BASE_MODEL
from tests.support.reference.shipped_model import base_digest, shipped_tokenizer
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.gateway_keys import KEY, OTHER_KEY, PLAN
from tests.support.worlds.gateway_world import World, gateway_world
from tests.support.worlds.worker_world import PREFILL_WEIGHT, open_world

TEXTS = ["one", "def f(x):\n    return x", "a" * 300]


def expected(ids: list[int] | tuple[int, ...], **fields: Any) -> Any:
    kv = [fake_kv(PREFILL_WEIGHT, token, position) for position, token in enumerate(ids)]
    return pytest.approx(fake_embedding(kv, PoolingKind.LAST, **fields), abs=1e-6)


def encode(text: str) -> list[int]:
    return shipped_tokenizer().encode(text, add_special_tokens=True)


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway over one prefill worker with a fake engine."""
    async with open_world(tmp_path) as workers, gateway_world() as world:
        worker = await workers.start(WorkerRole.PREFILL, fake={"model_path": BASE_MODEL, "num_blocks": 1024})
        world.router.embedders = [worker.ref]
        yield world
        await worker.wait_baseline()


@pytest.fixture
async def scripted() -> AsyncIterator[tuple[World, list[ScriptedEmbedder]]]:
    """A gateway over two scripted workers."""
    async with gateway_world(requests={"embedding_timeout_s": 10.0}) as world:
        embedders = [ScriptedEmbedder(f"prefill-{i}") for i in range(2)]
        for embedder in embedders:
            await embedder.start()
        world.router.embedders = [embedder.ref for embedder in embedders]
        yield world, embedders
        for embedder in embedders:
            await embedder.stop()


async def post(world: World, key: str = KEY, **body: Any) -> Any:
    content = {"model": "base", "input": "x", **body}
    return await world.http.post("/v1/embeddings", json=content, headers={"authorization": f"Bearer {key}"})


async def test_the_sdk_gets_one_vector_per_input_in_order(platform: World) -> None:
    answer = await platform.openai.embeddings.create(model="base", input=TEXTS)  # the SDK asks for base64
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert [item.embedding for item in answer.data] == [expected(encode(text)) for text in TEXTS]
    num_tokens = sum(len(encode(text)) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (num_tokens, num_tokens)
    assert answer.model == "base"
    await platform.wait_placements_completed()
    (request,) = platform.router.requests
    assert (request.work, request.num_choices, request.num_prompt_tokens) == (Work.EMBEDDING, 3, num_tokens)
    assert (request.model_digest, request.terms.tenant, request.max_output_tokens_total) == (base_digest(), "one", 0)
    assert platform.metric("stratos_prompt_tokens_total", tenant="one", model="base", **{"class": "1"}) == num_tokens
    assert platform.metric("stratos_embedding_inputs_total") == 3


@pytest.mark.parametrize("value", ["text", ["text"], [5, 6, 7], [[5, 6, 7], [8]], ["a", "b"]])
@pytest.mark.parametrize("encoding", [None, "float", "base64"])
async def test_every_form_of_input_and_encoding(platform: World, value: Any, encoding: Any) -> None:
    response = await post(platform, input=value, encoding_format=encoding)
    assert response.status_code == 200, response.text
    assert response.headers["x-request-id"]
    is_one = isinstance(value, str) or isinstance(value[0], int)
    inputs = [encode(v) if isinstance(v, str) else v for v in ([value] if is_one else value)]
    vectors = [item["embedding"] for item in response.json()["data"]]
    if encoding == "base64":
        vectors = [list(array("f", base64.b64decode(vector))) for vector in vectors]
    assert vectors == [expected(ids) for ids in inputs]


async def test_many_inputs_become_groups_and_come_back_in_order(platform: World) -> None:
    inputs = [[i + 1, i + 2, i + 3] for i in range(3 * MAX_GROUP_INPUTS + 1)]
    response = await post(platform, input=inputs)
    assert [item["embedding"] for item in response.json()["data"]] == [expected(ids) for ids in inputs]
    assert sorted(r.num_choices for r in platform.router.requests) == [1, 32, 32, 32]


async def test_routers_hear_where_the_gateway_is() -> None:
    async with gateway_world(zone="zone-1", region="region-2") as world:
        embedder = ScriptedEmbedder("prefill-0")
        await embedder.start()
        world.router.embedders = [embedder.ref]
        assert (await post(world)).status_code == 200
        await world.openai.completions.create(model="base", prompt="x", max_tokens=1)
        asked = [placement_request_to_part(request, 0.0) for request in world.router.requests]
        assert [(one["zone"], one["region"]) for one in asked] == [("zone-1", "region-2")] * 2
        await embedder.stop()


async def test_models_say_what_they_can_do(platform: World) -> None:
    (entry,) = (await platform.http.get("/v1/models")).json()["data"]
    assert entry["capabilities"] == ["chat.completions", "completions", "embeddings"]
    assert entry["embedding_dimensions"] == 256


async def test_keys_names_and_other_tenants_models(platform: World) -> None:
    assert (await post(platform, key="sk-nobody")).status_code == 401
    response = await post(platform, model="no-such-model")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert (await post(platform, key=OTHER_KEY)).status_code == 200
    assert not platform.router.completed or platform.router.requests[-1].terms.tenant == "two"


async def test_vectors_are_cut_only_where_it_means_something() -> None:
    async with gateway_world() as world:
        response = await post(world, dimensions=16)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "dimensions")
        assert "256" in error["message"]
    async with gateway_world(model={"matryoshka": "on"}) as world:
        embedder = ScriptedEmbedder("prefill-0")
        await embedder.start()
        world.router.embedders = [embedder.ref]
        assert (await post(world, dimensions=16)).status_code == 200
        assert (await post(world, dimensions=256)).status_code == 200
        assert [call.num_dimensions for call in embedder.calls] == [16, 256]
        assert (await post(world, dimensions=257)).status_code == 400
        await embedder.stop()


async def test_embedding_may_be_off() -> None:
    async with gateway_world(model={"pooling": "off"}) as world:
        response = await post(world)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_operation")
        (entry,) = (await world.http.get("/v1/models")).json()["data"]
        assert "embeddings" not in entry["capabilities"]


async def test_the_pooling_of_the_settings_reaches_the_worker() -> None:
    async with gateway_world(model={"pooling": "mean"}) as world:
        embedder = ScriptedEmbedder("prefill-0")
        await embedder.start()
        world.router.embedders = [embedder.ref]
        assert (await post(world)).status_code == 200
        (call,) = embedder.calls
        assert (call.pooling, call.normalizes) == (embed_pb2.POOLING_MEAN, True)
        assert (call.terms.cache_salt, call.terms.tenant, call.terms.priority_class) == (b"one", "one", 1)
        assert 0 < call.terms.deadline_ms <= 60_000
        await embedder.stop()


@pytest.mark.parametrize(("fault", "num_calls"), [("dies", 1), ("draining", 1), ("busy", 1), ("gone", 0)])
async def test_a_lost_worker_is_replaced_behind_the_clients_back(scripted: Any, fault: str, num_calls: int) -> None:
    world, (first, second) = scripted
    if fault == "dies":
        first.dies = True
    elif fault == "gone":
        await first.stop()
    else:
        first.errors = [Draining("leaving") if fault == "draining" else Busy("full")]
    response = await post(world, input=[[1, 2], [3]])
    assert [item["embedding"] for item in response.json()["data"]] == [[2.0], [1.0]]
    assert len(first.calls) + len(second.calls) == num_calls + 1
    assert [r.is_move for r in world.router.requests] == [False, True]
    excluded = world.router.requests[1].excluded_incarnations
    assert excluded == (frozenset() if fault == "busy" else {first.ref.incarnation})
    await eventually(lambda: len(world.router.completed) == 2, "both placements are reported")
    assert [outcome for _, outcome in world.router.completed] == [Outcome.FAILED, Outcome.FINISHED]


async def test_an_input_that_kills_workers_is_refused_after_two(scripted: Any) -> None:
    world, embedders = scripted
    for embedder in embedders:
        embedder.dies = True
    response = await post(world)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "prompt_refused")
    assert int(response.headers["retry-after"]) >= 1
    assert [len(embedder.calls) for embedder in embedders] == [1, 1]


async def test_a_refusal_of_the_worker_is_the_clients_answer(scripted: Any) -> None:
    world, (first, _) = scripted
    first.errors = [BadRequest("too odd", param="input")]
    response = await post(world)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input")
    assert len(world.router.requests) == 1


async def test_a_client_that_leaves_cancels_the_work(scripted: Any) -> None:
    world, (first, _) = scripted
    first.blocks = True
    task = asyncio.create_task(post(world, input=[[1]] * 40))
    await eventually(lambda: len(first.calls) == 2, "both groups are with the worker")
    task.cancel()
    await eventually(lambda: first.num_cancelled == 2, "the worker is told")
    await eventually(lambda: world.metric("stratos_requests_open") == 0, "no open request")
    await eventually(lambda: len(world.router.completed) == 2, "both placements are reported")
    assert {outcome for _, outcome in world.router.completed} == {Outcome.CANCELLED}


async def test_one_group_that_fails_ends_the_others(scripted: Any) -> None:
    world, (first, second) = scripted
    first.blocks = True
    world.router.spread = True
    second.errors = [BadRequest("too odd", param="input")]
    second.may_fail = lambda: bool(first.calls)  # a group that has not come is ended without a word
    response = await post(world, input=[[1]] * 40)
    assert response.status_code == 400
    await eventually(lambda: first.num_cancelled == 1, "the other group is cancelled")


async def test_a_request_has_a_deadline() -> None:
    async with gateway_world(requests={"embedding_timeout_s": 1.5}) as world:
        embedder = ScriptedEmbedder("prefill-0", blocks=True)
        await embedder.start()
        world.router.embedders = [embedder.ref]
        response = await post(world)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_timeout")
        assert response.headers["retry-after"]
        await eventually(lambda: embedder.num_cancelled == 1, "the worker is told")
        await embedder.stop()


async def test_open_requests_are_bounded_like_on_the_other_routes() -> None:
    async with gateway_world(requests={"max_open_per_tenant": 1}) as world:
        embedder = ScriptedEmbedder("prefill-0", blocks=True)
        await embedder.start()
        world.router.embedders = [embedder.ref]
        task = asyncio.create_task(post(world))
        await eventually(lambda: embedder.calls, "the first one is open")
        response = await post(world)
        assert (response.status_code, response.json()["error"]["code"]) == (429, "concurrency_limit")
        task.cancel()
        await eventually(lambda: world.metric("stratos_requests_open") == 0, "no open request")
        await embedder.stop()


async def test_vectors_are_billed_by_their_prompts_before_the_answer_and_failures_are_not(redis_url: str) -> None:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(open_redis(redis_url))
        store, reader = LedgerStore(redis, RecordStoreConfig()), UsageReader(redis, RecordStoreConfig())
        access = LedgerAccess(store=store, plan_of=lambda tenant: PLAN)
        ledger = {"interval_s": 3600.0, "settle_s": LIMIT_S}
        world = await stack.enter_async_context(gateway_world(ledger_access=access, ledger=ledger))
        embedder = ScriptedEmbedder("prefill-0")
        await embedder.start()
        stack.push_async_callback(embedder.stop)
        world.router.embedders = [embedder.ref]
        embedder.errors = [BadRequest("no")]
        assert (await post(world)).status_code == 400
        assert (await post(world, input=[[5, 6, 7], [8]])).status_code == 200

        async def entries() -> list[LedgerEntry]:
            return [entry async for entry in reader.entries("one", f"{datetime.now(UTC):%Y-%m-%d}")]

        found = await entries()
        assert [(entry.counts.num_prompt, entry.counts.num_output, entry.tag.route) for entry in found] == [
            (4, 0, "embedding")
        ]
        assert [(entry.times.ttft_us or 0) > 0 for entry in found] == [True], "until its vectors were there"


async def test_vectors_wait_unbilled_where_the_gateway_stood_still() -> None:
    embedder, gate = ScriptedEmbedder("prefill-0"), ShutGate()
    await embedder.start()
    client = EmbeddingClient(10.0, SystemClock(), gate=gate)
    call = EmbedCall(inputs=((1, 2),), model_digest="m", pooling=PoolingKind.LAST, normalizes=True, num_dimensions=None)
    embedding = asyncio.create_task(client.embed(embedder.ref, call))
    try:
        await gate.asked.wait()
        assert not embedding.done()
        gate.open()
        assert await embedding == [array("f", [2.0]).tobytes()]
    finally:
        await client.close()
        await embedder.stop()


async def test_a_worker_of_the_first_release_is_asked_again_without_what_it_refuses() -> None:
    embedder = ScriptedEmbedder("prefill-0", errors=[FeatureUnavailable("this build does not know field 7")])
    await embedder.start()
    client = EmbeddingClient(10.0, SystemClock())
    call = EmbedCall(inputs=((1, 2),), model_digest="m", pooling=PoolingKind.LAST, normalizes=True, num_dimensions=None)
    call = dataclasses.replace(call, terms=RequestTerms(tenant="id", tenant_name="acme"))
    try:
        assert await client.embed(embedder.ref, call) == [array("f", [2.0]).tobytes()]
        assert [asked.terms.tenant_name for asked in embedder.calls] == ["acme", ""]
        assert [asked.terms.tenant for asked in embedder.calls] == ["id", "id"]
    finally:
        await client.close()
        await embedder.stop()
