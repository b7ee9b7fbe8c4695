"""The Embed call of a prefill worker over real gRPC: vectors, batching, refusals, cancellation, drain, death."""

from __future__ import annotations

import asyncio
import dataclasses
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from stratos.api.worker.v1 import embed_pb2, embed_pb2_grpc
from stratos.common.errors import StratosError
from stratos.core.placement import WorkerRole
from stratos.core.requests.embedding import PoolingKind
from stratos.engine.fake.pooling import fake_embedding
from stratos.engine.fake.runner import fake_kv
from stratos.rpc.clients.channel import channel
from stratos.rpc.errors import from_rpc_error, translate_errors
from tests.support.waiting import eventually
from tests.support.worlds.terms import pop_terms_pb
from tests.support.worlds.worker_world import PREFILL_WEIGHT, Worker, World, open_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


@asynccontextmanager
async def embedder(worker: Worker) -> AsyncIterator[Any]:
    async with channel(worker.process.address) as peer:
        yield embed_pb2_grpc.EmbedServiceStub(peer)


def message(*inputs: list[int], **fields: Any) -> embed_pb2.EmbedRequest:
    values = {
        "request_id": "r",
        "pooling": embed_pb2.POOLING_LAST,
        "normalizes": True,
        "model_digest": "fake",
        "terms": pop_terms_pb(fields),
    }
    return embed_pb2.EmbedRequest(inputs=[embed_pb2.EmbedInput(token_ids=ids) for ids in inputs], **(values | fields))


def expected(ids: list[int], pooling: PoolingKind = PoolingKind.LAST, **fields: Any) -> Any:
    kv = [fake_kv(PREFILL_WEIGHT, token, position) for position, token in enumerate(ids)]
    return pytest.approx(fake_embedding(kv, pooling, **fields), abs=1e-6)


def vectors(answer: embed_pb2.EmbedResponse) -> list[list[float]]:
    return [list(array("f", embedding.values)) for embedding in answer.embeddings]


async def test_many_inputs_of_mixed_lengths_come_back_in_order_from_shared_steps(world: World) -> None:
    worker = await world.start(WorkerRole.PREFILL, scheduler={"max_num_batched_tokens": 256})
    inputs = [list(range(i, 2 * i + 1 + i % 7)) for i in range(1, 25)]
    step = worker.process.opened.context.engine.status().step
    async with embedder(worker) as stub:
        answer = await stub.Embed(message(*inputs))
        assert vectors(answer) == [expected(ids) for ids in inputs]
        steps = worker.process.opened.context.engine.status().step - step
        assert steps < len(inputs) / 2, "inputs of one call share steps"
        mean = await stub.Embed(message(*inputs[:3], pooling=embed_pb2.POOLING_MEAN, num_dimensions=4))
        assert vectors(mean) == [expected(ids, PoolingKind.MEAN, num_dimensions=4) for ids in inputs[:3]]
        raw = await stub.Embed(message(inputs[0], normalizes=False))
        assert vectors(raw) == [expected(inputs[0], normalizes=False)]
    await worker.wait_baseline()
    assert worker.metric("stratos_embed_calls_total", outcome="finished") == 3


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"inputs": []}, "invalid_request", "inputs"),
        ({"inputs": [[1], []]}, "invalid_request", "inputs"),
        ({"inputs": [[4096]]}, "invalid_request", "inputs"),
        ({"inputs": [[1] * 4097]}, "context_length_exceeded", "inputs"),
        ({"inputs": [[1] * 2000]}, "context_length_exceeded", None),
        ({"inputs": [[1]] * 2049}, "invalid_request", "inputs"),
        ({"pooling": 0}, "invalid_request", "pooling"),
        ({"pooling": 7}, "feature_unavailable", None),
        ({"num_dimensions": 9}, "invalid_request", "dimensions"),
        ({"num_dimensions": 0}, "invalid_request", "dimensions"),
        ({"model_digest": "other"}, "identity_mismatch", None),
        ({"request_id": ""}, "invalid_request", "request_id"),
        ({"cache_salt": b"x" * 65}, "invalid_request", "cache_salt"),
        ({"priority_class": 16}, "invalid_request", "priority_class"),
        ({"deadline_ms": 0}, "queue_timeout", None),
        ({"adapter_digest": "x"}, "invalid_request", "adapter_digest"),
        ({"adapter_digest": "ab" * 32}, "adapter_unavailable", None),
    ],
)
async def test_a_malformed_call_is_refused_whole(world: World, fields: dict[str, Any], code: str, param: Any) -> None:
    worker = await world.start(WorkerRole.PREFILL)
    inputs = fields.pop("inputs", [[1, 2]])
    async with embedder(worker) as stub:
        with pytest.raises(StratosError) as caught:
            async with translate_errors():
                await stub.Embed(message(*inputs, **fields))
        assert (caught.value.code, caught.value.param) == (code, param)
        assert vectors(await stub.Embed(message([1, 2]))) == [expected([1, 2])]
    await worker.wait_baseline()


async def test_a_poisoned_input_fails_its_call_and_no_other(world: World) -> None:
    worker = await world.start(WorkerRole.PREFILL, lambda fake: dataclasses.replace(fake, poison_token=99, step_s=0.02))
    async with embedder(worker) as stub:
        bystander = stub.Embed(message(list(range(60)), list(range(90))))
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Embed(message(list(range(80)), [1, 99], [5]))
        assert vectors(await bystander) == [expected(list(range(60))), expected(list(range(90)))]
    await worker.wait_baseline()
    assert len(worker.process.opened.embedder) == 0


async def test_a_caller_that_leaves_frees_everything(world: World) -> None:
    worker = await world.start(WorkerRole.PREFILL, fake={"step_s": 0.02}, scheduler={"max_num_batched_tokens": 8})
    async with embedder(worker) as stub:
        call = stub.Embed(message(*[list(range(i, i + 100)) for i in range(5)]))
        await eventually(lambda: worker.process.opened.context.engine.status().num_running, "the inputs run")
        call.cancel()
        await worker.wait_baseline()
        await eventually(lambda: worker.process.opened.context.engine.status().num_waiting == 0, "nothing waits")
    assert worker.metric("stratos_embed_calls_total", outcome="cancelled") == 1


async def test_a_draining_worker_ends_its_calls_and_takes_no_more(world: World) -> None:
    worker = await world.start(WorkerRole.PREFILL, fake={"step_s": 0.02}, scheduler={"max_num_batched_tokens": 8})
    async with embedder(worker) as stub:
        call = stub.Embed(message(list(range(100))))
        await eventually(lambda: worker.process.opened.context.engine.status().num_running, "the input runs")
        worker.process.start_drain(None)
        with pytest.raises(StratosError) as caught:
            async with translate_errors():
                await stub.Embed(message([1]))
        assert caught.value.code == "draining"
        assert vectors(await call) == [expected(list(range(100)))]
    assert await worker.exit_code == 0


async def test_the_death_of_the_engine_is_told_as_a_lost_worker(world: World) -> None:
    worker = await world.start(WorkerRole.PREFILL, lambda fake: dataclasses.replace(fake, fail_at_step=8))
    async with embedder(worker) as stub:
        calls = [stub.Embed(message(list(range(i, i + 200)))) for i in range(8)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failures = {from_rpc_error(error).code for error in outcomes if isinstance(error, grpc.aio.AioRpcError)}
    assert "worker_lost" in failures
    assert failures <= {"worker_lost", "draining"}, "both send the gateway elsewhere"


async def test_a_decode_worker_does_not_embed(world: World) -> None:
    worker = await world.start(WorkerRole.DECODE)
    async with embedder(worker) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Embed(message([1]))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
