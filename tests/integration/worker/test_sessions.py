"""Sessions of a decode worker: bad input, attempts, orphans, drain, status, adapters."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from stratos.api.worker.v1 import decode_pb2, worker_pb2, worker_pb2_grpc
from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.placement import ServiceTag, WorkerRole, new_handoff_id
from stratos.engine.fake.runner import fake_generate
from stratos.rpc.clients.channel import channel
from stratos.rpc.codec.fleet import WORKER_STATUS
from stratos.worker.adapter_cache import NoStore
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import DECODE_WEIGHT, PREFILL_WEIGHT, Worker, World, make_submit, open_world

PROMPT = [(7 * i) % 4096 for i in range(40)]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


def local(prompt: list[int], count: int, **fields: Any) -> list[int]:
    weights = {"prefill_weight": 0, "decode_weight": DECODE_WEIGHT, "num_prefilled": 0}
    return fake_generate(prompt, count, **(weights | fields))


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": []}, "invalid_request", "prompt_ids"),
        ({"prompt": [4096]}, "invalid_request", "prompt_ids"),
        ({"prompt": [1] * 4096}, "context_length_exceeded", "prompt_ids"),
        ({"max_tokens": 0}, "invalid_request", "max_tokens"),
        ({"sampling": {"temperature": float("nan")}}, "invalid_request", "temperature"),
        ({"sampling": {"top_p": 0.0}}, "invalid_request", "top_p"),
        ({"sampling": {"top_k": 2**31}}, "invalid_request", "top_k"),
        ({"sampling": {"num_logprobs": 21}}, "invalid_request", "num_logprobs"),
        ({"sampling": {"logit_bias": {5000: 1.0}}}, "invalid_request", "logit_bias"),
        ({"sampling": {"logit_bias": {1: float("inf")}}}, "invalid_request", "logit_bias"),
        ({"sampling": {"stop_token_ids": [9999]}}, "invalid_request", "stop_token_ids"),
        ({"sampling": {"min_tokens": 9}}, "invalid_request", "min_tokens"),
        ({"choices": [decode_pb2.ChoiceState(index=1)] * 2}, "invalid_request", "choices"),
        ({"choices": [decode_pb2.ChoiceState(index=i) for i in range(17)]}, "invalid_request", "choices"),
        ({"choices": [decode_pb2.ChoiceState(finished=True)]}, "invalid_request", "choices"),
        ({"choices": [decode_pb2.ChoiceState(emitted_ids=[5000])]}, "invalid_request", "choices"),
        ({"cache_salt": b"x" * 65}, "invalid_request", "cache_salt"),
        ({"priority_class": 99}, "invalid_request", "priority_class"),
        ({"deadline_ms": 0}, "queue_timeout", ""),
        ({"model_digest": "another"}, "identity_mismatch", ""),
        ({"adapter_digest": "../../etc"}, "invalid_request", "adapter_digest"),
    ],
)
async def test_bad_submit_is_answered_and_harms_nobody(
    world: World, fields: dict[str, Any], code: str, param: str
) -> None:
    decode = await world.start(WorkerRole.DECODE)
    gateway = await world.gateway(decode)
    prompt = fields.pop("prompt", PROMPT)
    stream = await (await gateway.submit(prompt, request_id="bad", **fields)).over()
    assert (stream.error.code, stream.error.param) == (code, param)
    good = await (await gateway.submit(PROMPT, request_id="good")).over()
    assert good.tokens[0] == local(PROMPT, 4)
    await decode.wait_baseline()


async def test_duplicate_attempt_is_refused_and_a_newer_one_takes_over(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, fake={"step_s": 0.005})
    gateway, other = await world.gateway(decode), await world.gateway(decode)
    old = await gateway.submit(PROMPT, max_tokens=3000)
    await old.wait_tokens(2)
    refused = await (await other.submit(PROMPT)).over()
    assert refused.error.code == "duplicate_attempt"
    newer = await (await other.submit(PROMPT, attempt=1, max_tokens=5)).over()
    assert newer.tokens[0] == local(PROMPT, 5)
    assert not old.is_over
    await decode.wait_baseline()


async def test_attach_replays_what_a_broken_session_missed(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, fake={"step_s": 0.005})
    first, second = await world.gateway(decode), await world.gateway(decode)
    stream = await first.submit(PROMPT, max_tokens=40)
    await stream.wait_tokens(5)
    received = stream.tokens[0][:2]
    first.call.cancel()
    await eventually(lambda: decode.process.opened.table.num_orphans == 1, "an orphan")
    attached = await (await second.attach("req-1", received)).over()
    assert attached.tokens[0] == local(PROMPT, 40)
    assert attached.receipt.num_prompt_tokens == len(PROMPT)
    unknown = await (await second.attach("nobody", [])).over()
    assert unknown.error.code == "not_found"


async def test_single_tokens_come_in_columns_to_a_gateway_that_reads_them(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, fake={"step_s": 0.02})
    newer, older = await world.gateway(decode), await world.gateway(decode, takes_columns=False)
    unnumbered = await world.gateway(decode, numbers_submits=False)
    long = await newer.submit(PROMPT, request_id="long", max_tokens=4000)  # 80 s: it never ends before its Cancel
    for number, gateway in enumerate((older, unnumbered)):
        short = await (await gateway.submit(PROMPT, request_id=f"short-{number}", max_tokens=6)).over()
        assert (short.tokens[0], gateway.num_in_columns) == (local(PROMPT, 6), 0)
    await eventually(lambda: newer.num_in_columns > 1, "tokens in columns")
    await newer.cancel("long")
    assert long.tokens[0] == local(PROMPT, len(long.tokens[0]))


async def test_a_gateway_whose_numbers_do_not_fit_loses_its_session_and_nobody_else(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE)
    odd, sound = await world.gateway(decode), await world.gateway(decode)
    message = decode_pb2.SessionRequest(submit=make_submit(PROMPT, request_id="odd"), submit_number=2)
    await odd.call.write(message)
    await eventually(lambda: odd.is_ended, "the end of the session")
    assert not odd.streams
    assert (await (await sound.submit(PROMPT)).over()).tokens[0] == local(PROMPT, 4)
    await decode.wait_baseline()


async def test_orphans_are_freed_when_nobody_attaches(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, fake={"step_s": 0.005}, orphan_ttl_s=0.1)
    gateway = await world.gateway(decode)
    stream = await gateway.submit(PROMPT, max_tokens=3000)
    await stream.wait_tokens(2)
    gateway.call.cancel()
    await decode.wait_baseline()
    assert len(decode.process.opened.table) == 0


async def test_one_choice_can_be_cancelled(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, fake={"step_s": 0.002})
    gateway = await world.gateway(decode)
    choices = [decode_pb2.ChoiceState(index=i) for i in range(2)]
    stream = await gateway.submit(PROMPT, choices=choices, max_tokens=100)
    await eventually(lambda: len(stream.tokens.get(1, [])) > 1, "tokens of the second choice")
    await gateway.cancel("req-1", indexes=(1,))
    await stream.over()
    assert stream.tokens[0] == local(PROMPT, 100)
    assert stream.finish[1] == decode_pb2.FINISH_REASON_ABORT
    assert len(stream.tokens[1]) < 100


async def test_poisoned_request_fails_alone(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, lambda fake: dataclasses.replace(fake, poison_token=4001))
    gateway = await world.gateway(decode)
    bad = await gateway.submit([1, 2, 4001], request_id="bad")
    good = await gateway.submit(PROMPT, request_id="good")
    assert (await bad.over()).error.code == "internal_error"
    assert (await good.over()).tokens[0] == local(PROMPT, 4)


async def test_dead_step_loop_ends_the_process(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, lambda fake: dataclasses.replace(fake, fail_at_step=4))
    gateway = await world.gateway(decode)
    stream = await (await gateway.submit(PROMPT, max_tokens=50)).over()
    assert stream.error.code == "worker_lost"
    await eventually(decode.exit_code.done, "the process' end")
    assert decode.exit_code.result() == 1


async def test_drain_refuses_new_work_and_hands_streams_back(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, fake={"step_s": 0.005}, drain_timeout_s=3.0)
    gateway = await world.gateway(decode)
    stream = await gateway.submit(PROMPT, max_tokens=4000, request_id="long")
    await stream.wait_tokens(2)
    async with channel(decode.process.address) as peer:
        await worker_pb2_grpc.WorkerServiceStub(peer).Drain(worker_pb2.DrainRequest(timeout_ms=400))
    late = await (await gateway.submit(PROMPT, request_id="late")).over()
    assert late.error.code == "draining"
    assert (await stream.over()).error.code == "draining"
    emitted = stream.tokens[0]
    assert emitted == local(PROMPT, len(emitted)), "what was emitted before the move is what a successor goes on from"
    await eventually(decode.exit_code.done, "the process' end")
    assert decode.exit_code.result() == 0


async def test_progress_and_status_show_life(world: World) -> None:
    decode = await world.start(WorkerRole.DECODE, fake={"step_s": 0.005})
    gateway = await world.gateway(decode)
    assert gateway.worker.worker_id == "decode-0"
    async with channel(decode.process.address) as peer:
        watch = worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(worker_pb2.WatchStatusRequest(interval_ms=100))
        idle = WORKER_STATUS.from_pb(await watch.read())
        assert idle.ref == decode.ref
        assert (idle.engine.num_running, idle.engine.is_computing, idle.not_ready_reason) == (0, False, "")
        stream = await gateway.submit(PROMPT, max_tokens=3000)
        await stream.wait_tokens(1)
        while (busy := WORKER_STATUS.from_pb(await watch.read())).engine.num_running == 0:
            continue
        while WORKER_STATUS.from_pb(await watch.read()).engine.step <= busy.engine.step:
            continue
        assert busy.engine.blocks.allocated > 0
        await gateway.cancel("req-1")
        while WORKER_STATUS.from_pb(await watch.read()).engine.num_running:
            continue
    await eventually(lambda: gateway.num_progress >= 2, "progress without work")
    assert gateway.num_taken == 1, "a cancelled request was taken, too"


# -- adapters --------------------------------------------------------------------------------------


def write_adapter(folder: Path, rank: int = 2) -> str:
    folder.mkdir(parents=True)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    save_file({f"{name}A.weight": torch.ones(rank, 4), f"{name}B.weight": torch.ones(4, rank)},
              folder / "adapter_model.safetensors")  # fmt: skip
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return read_adapter_files(folder).digest


async def start_with_store(world: World, root: Path) -> tuple[Worker, Worker]:
    url = f"file://{root}"
    return (
        await world.start(WorkerRole.PREFILL, object_store={"url": url}),
        await world.start(WorkerRole.DECODE, object_store={"url": url}),
    )


async def test_adapter_is_fetched_by_both_workers_and_used(world: World, tmp_path: Path) -> None:
    digest = write_adapter(tmp_path / "store/adapters/a")
    prefill, decode = await start_with_store(world, tmp_path / "store")
    gateway = await world.gateway(decode)
    adapter = {"adapter_digest": digest, "adapter_uri": "adapters/a"}
    stream = await (await gateway.submit(PROMPT, prefill=(prefill,), **adapter)).over()
    tokens = fake_generate(PROMPT, 4, prefill_weight=PREFILL_WEIGHT, decode_weight=DECODE_WEIGHT, adapter_digest=digest)
    assert stream.tokens[0] == tokens
    assert stream.receipt.num_transferred_tokens == len(PROMPT) - 1
    for worker in (prefill, decode):
        assert worker.process.opened.context.engine.status().resident_adapters == (digest,)
        assert worker.metric("stratos_adapter_loads_total", outcome="fetched") == 1
    (tmp_path / "store").rename(tmp_path / "gone")
    cached = await (await gateway.submit(PROMPT[:20], request_id="cached", **adapter)).over()
    assert cached.error is None


async def test_a_job_leaves_the_engine_before_its_adapter_is_given_back(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = write_adapter(tmp_path / "store/adapters/a")
    url = f"file://{tmp_path / 'store'}"
    prefill = await world.start(WorkerRole.PREFILL, object_store={"url": url}, fake={"token_s": 0.005})
    decode = await world.start(WorkerRole.DECODE, object_store={"url": url})
    gateway = await world.gateway(decode)
    engine, calls = prefill.process.opened.context.engine, []
    for name in ("release_prefill", "unpin_adapter"):
        original = getattr(engine, name)

        async def logged(argument: str, name: str = name, original: Any = original) -> None:
            calls.append(name)
            await original(argument)

        monkeypatch.setattr(engine, name, logged)
    prompt = [(7 * i) % 4096 for i in range(900)]
    await gateway.submit(prompt, prefill=(prefill,), adapter_digest=digest, adapter_uri="adapters/a")
    await eventually(lambda: engine.status().num_prefill_jobs and engine.status().step, "the source computes")
    await gateway.cancel("req-1")
    await eventually(lambda: len(calls) == 2, "the leg's end")
    assert calls == ["release_prefill", "unpin_adapter"]
    await prefill.wait_baseline()
    await decode.wait_baseline()


async def test_wrong_adapter_bytes_are_refused_never_served(world: World, tmp_path: Path) -> None:
    write_adapter(tmp_path / "store/adapters/a")
    registered = write_adapter(tmp_path / "store/adapters/b", rank=3)
    prefill, decode = await start_with_store(world, tmp_path / "store")
    gateway = await world.gateway(decode)
    fields = {"adapter_digest": registered, "adapter_uri": "adapters/a"}
    for request_id, endpoints in (("here", ()), ("there", (prefill,))):
        stream = await (await gateway.submit(PROMPT, prefill=endpoints, request_id=request_id, **fields)).over()
        assert stream.error.code == "adapter_mismatch"
        assert not stream.tokens
    missing = {"adapter_digest": registered, "adapter_uri": "adapters/none"}
    stream = await (await gateway.submit(PROMPT, request_id="missing", **missing)).over()
    assert stream.error.code == "adapter_unavailable"
    await decode.wait_baseline()


async def test_the_object_store_is_ready_before_the_worker_serves(tmp_path: Path, monkeypatch: Any) -> None:
    """Its client takes a second or more of the interpreter's time, which must not come with the first adapter."""
    opened: list[str] = []

    class Store(NoStore):
        async def open(self) -> None:
            await asyncio.sleep(0.2)
            opened.append("open")

    monkeypatch.setattr("tests.support.worlds.worker_world.open_adapter_store", lambda config: Store())
    async with open_world(tmp_path) as world:
        await world.start(WorkerRole.DECODE)
        assert opened == ["open"]


async def test_a_status_tells_a_router_that_stands_by_where_tenants_are_and_the_active_one_nothing(
    world: World,
) -> None:
    decode = await world.start(WorkerRole.DECODE)
    gateway = await world.gateway(decode)
    placed = new_handoff_id("inc-active", ServiceTag(2, 40.0, 72.0))
    await (await gateway.submit(PROMPT, handoff_id=placed)).over()
    async with channel(decode.process.address) as peer:
        for router, told in (("inc-standby", [(2, 40.0, 72.0)]), ("inc-active", [])):
            request = worker_pb2.WatchStatusRequest(interval_ms=100, router=router)
            watch = worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(request)
            marks = WORKER_STATUS.from_pb(await watch.read()).service_marks
            assert [(mark.priority_class, mark.start, mark.counter) for mark in marks] == told
