"""Builds and workers that differ in what they know: a request runs where it is understood, or fails with a reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from stratos.api.worker.v1 import decode_pb2, decode_pb2_grpc, embed_pb2, embed_pb2_grpc
from stratos.common.errors import FeatureUnavailable
from stratos.core.features import PROTOCOL_VERSION, Feature
from stratos.core.placement import WorkerRole
from stratos.rpc.clients.channel import channel
from stratos.rpc.errors import from_rpc_error
from tests.support.reference.first_release import unknown_fields
from tests.support.waiting import eventually
from tests.support.worlds.gateway_world import World, gateway_world
from tests.support.worlds.router_world import (
    ask,
    entry,
    fake_workers,
    make_status,
    router_process,
    until_live,
    write_discovery,
)
from tests.support.worlds.worker_world import make_submit, open_world

DECODE, PREFILL = WorkerRole.DECODE, WorkerRole.PREFILL
GRAMMAR = frozenset({Feature.GRAMMAR})
PROMPT = list(range(20))
UNKNOWN_FIELD = bytes([0b11111000, 0b00111111, 1])
"""Field 1023 as a varint: what a later build may send."""


async def ask_for_json(world: World) -> httpx.Response:
    body = {"model": "base", "prompt": "x", "structured_outputs": {"regex": "[a-z ]+"}}
    return await world.http.post("/v1/completions", json=body)


# -- a gateway and workers that lack a feature ---------------------------------------------------------


async def test_a_request_goes_to_the_worker_that_offers_what_it_needs() -> None:
    async with gateway_world(2) as world:
        world.worker.features = frozenset(Feature) - GRAMMAR
        answer = await ask_for_json(world)
        assert answer.json()["choices"][0]["text"] == "hello world"
        assert not world.workers[0].submits, "it might drop the grammar and answer anything"
        assert list(world.workers[1].submits[0].required_features) == ["grammar"]
        assert [request.required_features for request in world.router.requests] == [GRAMMAR, GRAMMAR]
        assert world.metric("stratos_recoveries_total", cause="unsupported") == 1
        plain = await world.http.post("/v1/completions", json={"model": "base", "prompt": "x"})
        assert plain.status_code == 200
        assert len(world.worker.submits) == 1


async def test_a_worker_from_before_features_gets_plain_requests_alone() -> None:
    async with gateway_world(2) as world:
        world.worker.features, world.worker.protocol_version = frozenset(), 0
        assert (await ask_for_json(world)).status_code == 200
        assert not world.worker.submits
        assert (await world.http.post("/v1/completions", json={"model": "base", "prompt": "x"})).status_code == 200
        assert len(world.worker.submits) == 1


@pytest.mark.parametrize("knows_columns", [True, False])
async def test_a_worker_from_before_columns_says_each_token_in_an_entry(knows_columns: bool) -> None:
    async with gateway_world(1) as world:
        world.worker.knows_columns = knows_columns
        answers = [world.http.post("/v1/completions", json={"model": "base", "prompt": text}) for text in ("x", "y")]
        for answer in await asyncio.gather(*answers):
            assert answer.json()["choices"][0]["text"] == "hello world"
        assert bool(sum(session.num_in_columns for session in world.worker.sessions)) == knows_columns
        assert not world.metric("stratos_recoveries_total", cause="conflict")


@pytest.mark.parametrize("takes_further", [True, False])
async def test_a_worker_of_0_1_gets_no_field_that_it_refuses(takes_further: bool) -> None:
    async with gateway_world(1) as world:
        world.worker.takes_further = takes_further
        assert (await world.http.post("/v1/completions", json={"model": "base", "prompt": "x"})).status_code == 200
        later = list(unknown_fields(world.worker.submits[-1]))
        assert bool(later) == takes_further, later


async def test_a_request_that_no_worker_understands_ends_with_a_reason_and_no_text() -> None:
    async with gateway_world(4) as world:
        for worker in world.workers:
            worker.features = frozenset()
        answer = await ask_for_json(world)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "feature_unavailable")
        assert "retry-after" in answer.headers
        assert not any(worker.submits for worker in world.workers)


async def test_a_refusal_of_the_worker_itself_makes_the_gateway_go_elsewhere() -> None:
    async with gateway_world(2) as world:
        world.worker.error = FeatureUnavailable("this build does not know field 19 of SamplingParams")
        assert (await ask_for_json(world)).status_code == 200
        assert len(world.workers[0].submits) == len(world.workers[1].submits) == 1


async def test_a_worker_of_a_far_protocol_version_gets_no_session() -> None:
    async with gateway_world(2) as world:
        world.worker.protocol_version = PROTOCOL_VERSION + 2
        assert (await world.http.post("/v1/completions", json={"model": "base", "prompt": "x"})).status_code == 200
        assert not world.worker.submits


# -- a router ------------------------------------------------------------------------------------------


async def test_a_router_never_chooses_a_worker_that_lacks_a_feature(tmp_path: Path) -> None:
    statuses = [
        make_status("decode-old", DECODE, features=frozenset(), protocol_version=0),
        make_status("decode-far", DECODE, protocol_version=PROTOCOL_VERSION + 2),
        make_status("decode-new", DECODE, num_running=4),
    ]
    async with fake_workers(*statuses) as workers:
        discovery = tmp_path / "workers.json"
        write_discovery(discovery, *map(entry, workers))
        async with router_process(tmp_path, f"file://{discovery}", queue__ttl_s="0.4") as client:
            await until_live(client, *(worker.worker_id for worker in workers))
            for number in range(4):
                placement = await client.schedule(ask(f"grammar-{number}", required_features=GRAMMAR))
                assert placement.worker.worker_id == "decode-new"
            assert (await client.schedule(ask("plain"))).worker.worker_id == "decode-old"
            with pytest.raises(FeatureUnavailable, match="time travel"):
                await client.schedule(ask("unknown", required_features=frozenset({"time_travel"})))


# -- a worker that is asked directly ---------------------------------------------------------------------


async def test_a_worker_refuses_what_a_setting_takes_away(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        worker = await world.start(DECODE, disabled_features=["grammar", "watermark"])
        gateway = await world.gateway(worker)
        assert gateway.features == frozenset(Feature) - {"grammar", "watermark", "embeddings", "kv_keys"}
        assert worker.process.status().features == gateway.features
        grammar = decode_pb2.Grammar(kind="regex", text="a")
        asked = await gateway.submit(PROMPT, request_id="asked", sampling={"grammar": grammar})
        named = await gateway.submit(PROMPT, request_id="named", required_features=["watermark"])
        plain = await gateway.submit(PROMPT, request_id="plain")
        assert (await asked.over()).error.code == (await named.over()).error.code == "feature_unavailable"
        assert (await plain.over()).error is None


async def test_a_worker_refuses_fields_that_it_does_not_know(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        gateway = await world.gateway(await world.start(DECODE))
        for place in ("submit", "sampling", "choices", "terms"):
            submit = make_submit(PROMPT, request_id=place)
            parts = {"submit": submit, "sampling": submit.sampling, "choices": submit.choices[0], "terms": submit.terms}
            parts[place].MergeFromString(UNKNOWN_FIELD)
            await gateway.call.write(decode_pb2.SessionRequest(submit=submit))
            key = (submit.request_id, submit.attempt)
            await eventually(lambda key=key: key in gateway.streams, "an answer")
            error = (await gateway.streams[key].over()).error
            assert (error.code, "field 1023" in error.message) == ("feature_unavailable", True), place


async def test_a_worker_ignores_what_a_later_gateway_says_around_a_submit(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        gateway = await world.gateway(await world.start(DECODE))
        stream = await gateway.submit(PROMPT, around=UNKNOWN_FIELD)
        assert (await stream.over()).error is None


async def greet(address: str, version: int) -> Any:
    async with channel(address) as peer:
        call = decode_pb2_grpc.DecodeServiceStub(peer).Session()
        await call.write(decode_pb2.SessionRequest(hello=decode_pb2.Hello(protocol_version=version)))
        try:
            return (await call.read()).welcome
        finally:
            call.cancel()


async def test_a_worker_speaks_with_the_version_before_its_own_and_with_none_further_away(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        worker = await world.start(DECODE)
        for version in (PROTOCOL_VERSION - 1, PROTOCOL_VERSION, PROTOCOL_VERSION + 1):
            assert (await greet(worker.process.address, version)).protocol_version == PROTOCOL_VERSION
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await greet(worker.process.address, PROTOCOL_VERSION + 2)
        assert isinstance(from_rpc_error(caught.value), FeatureUnavailable)


async def test_a_prefill_worker_refuses_calls_that_it_does_not_understand(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        worker = await world.start(PREFILL)
        assert worker.process.status().features == {Feature.ADAPTERS, Feature.EMBEDDINGS}
        request = embed_pb2.EmbedRequest(
            request_id="e", model_digest="fake", inputs=[embed_pb2.EmbedInput(token_ids=[1])], pooling=1
        )
        async with channel(worker.process.address) as peer:
            stub = embed_pb2_grpc.EmbedServiceStub(peer)
            assert len((await stub.Embed(request)).embeddings) == 1
            request.terms.MergeFromString(UNKNOWN_FIELD)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Embed(request)
        assert isinstance(from_rpc_error(caught.value), FeatureUnavailable)
