"""A worker that leaves hands its streams back at once, and its successor fetches their KV: hardly a token twice."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from stratos.api.worker.v1 import decode_pb2, worker_pb2, worker_pb2_grpc
from stratos.common.errors import Overloaded
from stratos.core.placement import WorkerRole
from stratos.core.requests.records import EngineRequest, PrefillJob
from stratos.engine.contract.results import BlockReservation
from stratos.engine.fake.runner import fake_generate
from stratos.rpc.clients.dialer import ANY_WORKER, PLAIN
from stratos.worker.engine_client.base import BESIDE_STEPS, EngineClient
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import DECODE_WEIGHT, Stream, Worker, World, open_world

PROMPT = [(7 * i) % 4096 for i in range(100)]
BLOCK_SIZE, TOKEN_BYTES = 16, 8
PATIENT = {"drain_timeout_s": 100.0, "successor_wait_s": 90.0, "fake": {"step_s": 0.005}}
"""A worker that misses its successors would stay for the test's whole time."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


def received(worker: Worker) -> int:
    """Tokens whose KV came to it."""
    labels = {"direction": "received", "transport": "shm"}
    return int(worker.metric("stratos_kv_transfer_bytes_total", **labels)) // TOKEN_BYTES


def emitted(stream: Stream, index: int = 0) -> decode_pb2.ChoiceState:
    return decode_pb2.ChoiceState(index=index, emitted_ids=stream.tokens[index])


async def asked_for_moves(worker: Worker) -> worker_pb2.WaitDrainedResponse:
    """What it says that it moved, at the end of its drain."""
    async with PLAIN.channel(worker.ref.address, ANY_WORKER) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        return await stub.WaitDrained(worker_pb2.WaitDrainedRequest(), timeout=60)


def undisturbed(prompt: list[int], count: int) -> list[int]:
    return fake_generate(prompt, count, prefill_weight=0, decode_weight=DECODE_WEIGHT, num_prefilled=0)


async def test_a_drain_moves_streams_with_their_kv(world: World) -> None:
    leaving = await world.start(WorkerRole.DECODE, **PATIENT)
    successor = await world.start(WorkerRole.DECODE, worker_id="decode-1")
    old, new = await world.gateway(leaving), await world.gateway(successor)
    prompts = {f"r{i}": PROMPT[i:] for i in range(3)}
    streams = {name: await old.submit(prompt, request_id=name, max_tokens=200) for name, prompt in prompts.items()}
    for stream in streams.values():
        await stream.wait_tokens(40)
    moves = asyncio.create_task(asked_for_moves(leaving))
    leaving.process.start_drain(None)
    num_fetched, paths = 0, list[int]()
    for name, prompt in prompts.items():
        handed_back = await streams[name].over()
        assert handed_back.error.code == "draining"
        before = received(successor)
        num_emitted = len(handed_back.tokens[0])
        moved = await new.submit(
            prompt,
            request_id=name,
            attempt=1,
            max_tokens=num_emitted + 20,
            choices=[emitted(handed_back)],
            prefill=(leaving.ref,),
        )
        await moved.over()
        assert handed_back.tokens[0] + moved.tokens[0][num_emitted:] == undisturbed(prompt, num_emitted + 20)
        num_came, num_known = received(successor) - before, len(prompt) + num_emitted
        num_fetched += num_came
        assert num_known - num_came <= BLOCK_SIZE, "what is computed again"
        receipt = moved.receipt
        assert (receipt.num_transferred_tokens, receipt.num_recomputed_tokens) == (len(prompt), 0)
        paths.append(receipt.prefill_path)  # the whole is there where it ends with a block
    assert set(paths) <= {decode_pb2.PREFILL_PATH_LOCAL_TAIL, decode_pb2.PREFILL_PATH_HANDOFF}
    await eventually(leaving.exit_code.done, "it leaves once everything was fetched")
    assert leaving.exit_code.result() == 0
    assert await moves == worker_pb2.WaitDrainedResponse(
        num_handed_back=3, num_offered=3, num_fetched=3, num_fetched_tokens=num_fetched
    )
    num_part = paths.count(decode_pb2.PREFILL_PATH_LOCAL_TAIL)
    assert successor.metric("stratos_kv_handoffs_total", side="receiver", outcome="part") == num_part
    await successor.wait_baseline()


async def test_of_several_choices_the_prompt_moves(world: World) -> None:
    leaving = await world.start(WorkerRole.DECODE, **PATIENT)
    successor = await world.start(WorkerRole.DECODE, worker_id="decode-1")
    old, new = await world.gateway(leaving), await world.gateway(successor)
    fresh = [decode_pb2.ChoiceState(index=index) for index in range(2)]
    stream = await old.submit(PROMPT, max_tokens=400, choices=fresh)
    await stream.wait_tokens(40)
    leaving.process.start_drain(None)
    await stream.over()
    choices, max_tokens = [emitted(stream, 0), emitted(stream, 1)], len(stream.tokens[0]) + 10
    moved = await new.submit(PROMPT, attempt=1, max_tokens=max_tokens, choices=choices, prefill=(leaving.ref,))
    await moved.over()
    for index in range(2):
        whole = stream.tokens[index] + moved.tokens[index][len(stream.tokens[index]) :]
        assert whole == undisturbed(PROMPT, max_tokens)
    assert received(successor) == 96, "the full blocks of the prompt"
    await eventually(leaving.exit_code.done, "its end")


async def test_a_worker_whose_streams_are_not_fetched_leaves_after_its_time(world: World) -> None:
    leaving = await world.start(WorkerRole.DECODE, **PATIENT | {"successor_wait_s": 0.1})
    stream = await (await world.gateway(leaving)).submit(PROMPT, max_tokens=400)
    await stream.wait_tokens(2)
    leaving.process.start_drain(None)
    assert (await stream.over()).error.code == "draining"
    await eventually(leaving.exit_code.done, "its end")
    assert leaving.exit_code.result() == 0


async def test_streams_that_a_drain_cuts_off_are_reported(world: World) -> None:
    leaving = await world.start(WorkerRole.DECODE, **PATIENT | {"hand_back_after_s": 90.0})
    stream = await (await world.gateway(leaving)).submit(PROMPT, max_tokens=400)
    await stream.wait_tokens(2)
    moves = asyncio.create_task(asked_for_moves(leaving))
    leaving.process.start_drain(0.1)
    assert (await stream.over()).error.code == "draining"
    assert await moves == worker_pb2.WaitDrainedResponse(num_handed_back=1)
    await eventually(leaving.exit_code.done, "its end")


async def test_streams_may_have_time_to_end_by_themselves(world: World) -> None:
    leaving = await world.start(WorkerRole.DECODE, **PATIENT | {"hand_back_after_s": 90.0})
    stream = await (await world.gateway(leaving)).submit(PROMPT, max_tokens=60)
    await stream.wait_tokens(2)
    leaving.process.start_drain(None)
    assert (await stream.over()).error is None
    await eventually(leaving.exit_code.done, "its end")


async def test_a_moved_stream_waits_for_two_of_its_successors_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of the step loop costs the stream a step, which may take long on a machine without cores left."""
    leaving, successor, stream = await leaving_with_a_stream(world)
    engine, calls = successor.process.opened.context.engine, list[str]()

    def noted(name: str, method: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def call(*arguments: object) -> object:
            calls.append(name)
            return await method(*arguments)

        return call

    for name, _ in inspect.getmembers(EngineClient, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in BESIDE_STEPS | {"start", "close", "wait_failed"}:
            monkeypatch.setattr(engine, name, noted(name, getattr(engine, name)))
    max_tokens = len(stream.tokens[0]) + 5
    gateway = await world.gateway(successor)
    moved = await gateway.submit(
        PROMPT, attempt=1, max_tokens=max_tokens, choices=[emitted(stream)], prefill=(leaving.ref,)
    )
    await moved.over()
    assert calls in (["reserve", "commit_part"], ["reserve", "commit"]), "a part, where the leaving one had no more"
    await eventually(leaving.exit_code.done, "its end")


async def leaving_with_a_stream(world: World) -> tuple[Worker, Worker, Stream]:
    """A worker that has handed its stream back, its successor, and the stream."""
    leaving = await world.start(WorkerRole.DECODE, **PATIENT)
    successor = await world.start(WorkerRole.DECODE, worker_id="decode-1")
    stream = await (await world.gateway(leaving)).submit(PROMPT, max_tokens=200)
    await stream.wait_tokens(40)
    leaving.process.start_drain(None)
    await stream.over()
    return leaving, successor, stream


async def go_on_at(world: World, successor: Worker, stream: Stream, source: Worker) -> None:
    """Let the stream end there, and compare."""
    num_emitted = len(stream.tokens[0])
    moved = await (await world.gateway(successor)).submit(
        PROMPT, attempt=1, max_tokens=num_emitted + 5, choices=[emitted(stream)], prefill=(source.ref,)
    )
    await moved.over()
    assert stream.tokens[0] + moved.tokens[0][num_emitted:] == undisturbed(PROMPT, num_emitted + 5)


async def test_a_successor_takes_room_before_its_source_is_ready(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    leaving, successor, stream = await leaving_with_a_stream(world)
    engine, source = successor.process.opened.context.engine, leaving.process.opened.context.engine
    reserve, add_prefill, has_room = engine.reserve, source.add_prefill, asyncio.Event()

    async def noted(request: EngineRequest) -> BlockReservation | None:
        found = await reserve(request)
        has_room.set()
        return found

    async def late(job: PrefillJob) -> None:
        async with asyncio.timeout(10):
            await has_room.wait()
        await add_prefill(job)

    monkeypatch.setattr(engine, "reserve", noted)
    monkeypatch.setattr(source, "add_prefill", late)
    await go_on_at(world, successor, stream, leaving)
    assert received(successor) > 0
    await successor.wait_baseline()


async def test_room_that_was_taken_for_a_source_that_refuses_is_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving, successor, stream = await leaving_with_a_stream(world)

    async def refuse(_: PrefillJob) -> None:
        raise Overloaded("nothing is taken")

    monkeypatch.setattr(leaving.process.opened.context.engine, "add_prefill", refuse)
    await go_on_at(world, successor, stream, leaving)
    assert received(successor) == 0
    await successor.wait_baseline()
