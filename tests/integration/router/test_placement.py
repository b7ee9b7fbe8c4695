"""A real router process places requests by what its workers report."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

import pytest

from stratos.common.errors import BadRequest, ContextLengthExceeded, Overloaded, QueueTimeout
from stratos.core.kv import BlockLedger
from stratos.core.placement import Outcome, WorkerRole
from stratos.rpc.clients.router import RouterClient
from tests.support.waiting import eventually
from tests.support.worlds.router_world import (
    SEATS_BY_BOOKINGS,
    ask,
    by_id,
    entry,
    fake_workers,
    finished,
    fleet_of,
    make_status,
    router_process,
    until_live,
    write_discovery,
)

DECODE, PREFILL = WorkerRole.DECODE, WorkerRole.PREFILL


async def num_waiting(client: RouterClient) -> int:
    return sum(queue.num_requests for queue in (await fleet_of(client)).queues)


async def test_placement_follows_live_load_and_pairs_by_identity(tmp_path: Path) -> None:
    other = dataclasses.replace(make_status("x", PREFILL).identity, numerics_id="other")
    statuses = [
        make_status("decode-0", DECODE, num_running=4),
        make_status("decode-1", DECODE),
        make_status("prefill-0", PREFILL, num_queued_tokens=4000),
        make_status("prefill-1", PREFILL),
        make_status("prefill-2", PREFILL, identity=other),
    ]
    async with fake_workers(*statuses) as workers:
        static = "static://" + ",".join(f"{w.status.ref.role}@{w.address}" for w in workers)
        address = {worker.worker_id: worker.address for worker in workers}
        async with router_process(tmp_path, static) as client:
            await until_live(client, *address.values())
            first = await client.schedule(ask())
            assert first.decode.address == address["decode-1"]
            assert first.decode.incarnation == "inc-decode-1"
            assert [ref.address for ref in first.prefill] == [address["prefill-1"], address["prefill-0"]]
            assert first.handoff_id.startswith("handoff-")

            workers[1].set(num_running=7)
            workers[0].set(num_running=0)
            await eventually(lambda: _running(client, address["decode-1"], 7))
            second = await client.schedule(ask("req-2"))
            assert second.decode.address == address["decode-0"]
            excluded = frozenset({"inc-decode-0"})
            third = await client.schedule(ask("req-3", excluded_incarnations=excluded))
            assert third.decode.address == address["decode-1"]


async def _running(client: RouterClient, worker_id: str, count: int) -> bool:
    status = by_id(await fleet_of(client))[worker_id].status
    return status is not None and status.engine.num_running == count


async def test_waits_for_a_seat_and_takes_the_one_that_complete_frees(tmp_path: Path) -> None:
    async with fake_workers(make_status("decode-0", DECODE, max_num_seqs=1)) as workers:
        discovery = tmp_path / "workers.json"
        write_discovery(discovery, entry(workers[0]))
        settings = {"admission__max_waiting_per_worker": "0", **SEATS_BY_BOOKINGS}
        async with router_process(tmp_path, f"file://{discovery}", **settings) as client:
            await until_live(client, "decode-0")
            held = await client.schedule(ask())
            waiting = asyncio.create_task(client.schedule(ask("req-2")))
            await eventually(lambda: _is_waiting(client, 1))
            recovery = asyncio.create_task(client.schedule(ask("req-3", is_move=True, attempt=1)))
            await eventually(lambda: _is_waiting(client, 2))
            await client.complete([finished(held, num_output_tokens=5)])
            moved = await recovery
            assert not waiting.done()
            await client.complete([finished(moved)])
            await client.complete([finished(moved), finished(moved)])  # idempotent
            assert (await waiting).queued_ms > 0
            assert await num_waiting(client) == 0


async def _is_waiting(client: RouterClient, count: int) -> bool:
    return await num_waiting(client) == count


async def test_a_caller_that_leaves_frees_its_place_in_the_queue_and_its_seat(tmp_path: Path) -> None:
    async with fake_workers(make_status("decode-0", DECODE, max_num_seqs=1)) as workers:
        static = f"static://decode@{workers[0].address}"
        settings = {"admission__max_waiting_per_worker": "0", **SEATS_BY_BOOKINGS}
        async with router_process(tmp_path, static, **settings) as client:
            await until_live(client, workers[0].address)
            held = await client.schedule(ask())
            leaver = asyncio.create_task(client.schedule(ask("req-2")))
            await eventually(lambda: _is_waiting(client, 1))
            leaver.cancel()
            await eventually(lambda: _is_waiting(client, 0))
            await client.complete([dataclasses.replace(finished(held), outcome=Outcome.CANCELLED)])
            await client.schedule(ask("req-3"))


async def test_a_request_waits_for_the_first_worker_and_times_out_without_one(tmp_path: Path) -> None:
    discovery = tmp_path / "workers.json"
    write_discovery(discovery)
    async with router_process(tmp_path, f"file://{discovery}", queue__ttl_s="600") as client:
        with pytest.raises(QueueTimeout, match="no decode worker is known") as refused:
            await client.schedule(ask(deadline_s=time.monotonic() + 0.05))
        assert refused.value.after_s == 0, "none is before it; gateways bound it"
        early = asyncio.create_task(client.schedule(ask()))
        await eventually(lambda: _is_waiting(client, 1))
        async with fake_workers(make_status("decode-0", DECODE)) as workers:
            write_discovery(discovery, entry(workers[0]))
            assert (await early).decode.worker_id == "decode-0"
            discovery.write_text("[{")  # a malformed file keeps the last good list
            other = asyncio.create_task(client.schedule(ask("req-2", model_digest="cd" * 32, waited_ms=599_900)))
            with pytest.raises(QueueTimeout, match="of another model"):
                await other
            assert (await client.schedule(ask("req-3"))).decode.worker_id == "decode-0"


async def test_full_queue_and_impossible_and_malformed_requests_are_refused_at_once(tmp_path: Path) -> None:
    blocks = BlockLedger(total=10, free=0, cached=0, allocated=10, reserved=0, fenced=0)
    async with fake_workers(make_status("decode-0", DECODE, blocks=blocks)) as workers:
        static = f"static://decode@{workers[0].address}"
        async with router_process(tmp_path, static, queue__max_requests="1") as client:
            await until_live(client, workers[0].address)
            with pytest.raises(ContextLengthExceeded, match="KV pool"):
                await client.schedule(ask(num_prompt_tokens=16 * 9))
            with pytest.raises(BadRequest, match="num_prompt_tokens"):
                await client.schedule(ask(num_prompt_tokens=0))
            waiting = asyncio.create_task(client.schedule(ask()))
            await eventually(lambda: _is_waiting(client, 1))
            with pytest.raises(Overloaded) as refused:
                await client.schedule(ask("req-2"))
            assert refused.value.after_s is not None
            workers[0].set(blocks=dataclasses.replace(blocks, free=10, allocated=0))
            assert (await waiting).decode.address == workers[0].address
