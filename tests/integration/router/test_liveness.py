"""Workers that die, stop, hang, drain or restart, as real processes where that matters."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratos.core.placement import WorkerRole
from stratos.rpc.clients.router import RouterClient
from tests.support.promises import Promised
from tests.support.servers import warm_process
from tests.support.servers.warm_process import WarmProcess
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.router_world import (
    ask,
    by_id,
    entry,
    fake_workers,
    fleet_of,
    make_status,
    router_process,
    service_process,
    start_worker_process,
    until_live,
    write_discovery,
)

LOST_WITHIN_S = 1.0
OUT_WITHIN_S = 3.0


@pytest.fixture
def two_processes() -> Iterator[list[tuple[WarmProcess, str]]]:
    found = [start_worker_process(f"decode-{index}", WorkerRole.DECODE) for index in range(2)]
    try:
        yield list(found)
    finally:
        for process, _ in found:
            process.end()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def _until_out(client: RouterClient, worker_id: str, reason: str, untouched: str = "") -> None:
    """Until the router says that it is out for this reason. The untouched worker is the control and must stay in.

    On a busy machine a worker of this process may be silent for a moment before.
    """
    while True:
        workers = by_id(await fleet_of(client))
        assert not untouched or workers[untouched].is_live
        if workers[worker_id].out_reason == reason:
            return
        await asyncio.sleep(0.02)


async def test_a_stopped_process_is_out_within_3_s_and_back_in_after_it_goes_on(
    tmp_path: Path, two_processes, promised: Promised
) -> None:
    (stopped, address), (_, other) = two_processes
    async with router_process(tmp_path, f"static://decode@{address},decode@{other}") as client:
        await until_live(client, address, other)
        with promised("a stopped worker is out", OUT_WITHIN_S):
            stopped.send_signal(signal.SIGSTOP)
            await eventually(lambda: _state(stopped.pid) == "T")
            await _until_out(client, address, "silent", other)
        for index in range(4):
            assert (await client.schedule(ask(f"req-{index}"))).decode.address == other
        stopped.send_signal(signal.SIGCONT)
        await until_live(client, address, other)


async def test_a_killed_process_is_out_at_once_and_a_restart_replaces_it(
    tmp_path: Path, two_processes, promised: Promised
) -> None:
    (killed, address), (_, other) = two_processes
    async with router_process(tmp_path, f"static://decode@{address},decode@{other}") as client:
        await until_live(client, address, other)
        old = by_id(await fleet_of(client))[address].ref.incarnation
        with promised("a killed worker is out", LOST_WITHIN_S):
            killed.kill()
            await _until_out(client, address, "lost", other)
        killed.wait()
        again, _ = start_worker_process("decode-0", WorkerRole.DECODE, int(address.rpartition(":")[2]))
        try:
            await until_live(client, address, other)
            new = by_id(await fleet_of(client))[address].ref.incarnation
            assert new != old
            assert new.endswith(str(again.pid))
        finally:
            again.end()


async def test_hung_draining_and_not_ready_workers_are_out_while_their_statuses_flow(
    tmp_path: Path, promised: Promised
) -> None:
    status = make_status("decode-0", WorkerRole.DECODE)
    async with fake_workers(status, make_status("decode-1", WorkerRole.DECODE)) as workers:
        discovery = tmp_path / "workers.json"
        write_discovery(discovery, *(entry(worker) for worker in workers))
        async with router_process(tmp_path, f"file://{discovery}") as client:
            await until_live(client, "decode-0", "decode-1")
            workers[1].set(is_draining=True)
            with promised("a hung worker is out", OUT_WITHIN_S):
                workers[0].set(is_computing=True, step=7)
                await _until_out(client, "decode-0", "hung")
            await _until_out(client, "decode-1", "draining")
            workers[0].set(step=8)
            await until_live(client, "decode-0")
            workers[0].set(is_computing=False, not_ready_reason="warming up")
            await _until_out(client, "decode-0", "not_ready: warming up")
            write_discovery(discovery, entry(workers[1]))
            await eventually(lambda: _members(client, {"decode-1"}))


async def _members(client: RouterClient, worker_ids: set[str]) -> bool:
    return by_id(await fleet_of(client)).keys() == worker_ids


async def test_metrics_tell_what_happened_and_readiness_waits_for_the_worker_list(tmp_path: Path) -> None:
    discovery = tmp_path / "workers.json"
    write_discovery(discovery)
    async with fake_workers(make_status("decode-0", WorkerRole.DECODE)) as workers:
        # Else a booking that its worker never tells of ends after a while, which a slow machine takes.
        settings = {"discovery": f"file://{discovery}", "bookings__confirm_s": "600"}
        async with service_process("stratos_router", tmp_path, settings) as found:
            base = f"http://{found['metrics_address']}"
            async with RouterClient(found["address"]) as client:
                write_discovery(discovery, entry(workers[0]))
                await until_live(client, "decode-0")
                await client.schedule(ask())
                workers[0].set(is_draining=True)
                await until_live(client)
                wanted = [
                    'stratos_router_placements_total{class="0",outcome="placed"} 1.0',
                    'stratos_router_worker_evictions_total{reason="draining",role="decode"} 1.0',
                    'stratos_router_workers{role="decode",state="out"} 1.0',
                    "stratos_router_bookings 1.0",
                    'stratos_router_schedule_seconds_count{outcome="placed"} 1.0',
                ]
                queued = asyncio.create_task(client.schedule(ask("req-2", priority_class=2)))
                labels = f'class="2",model_digest="{ask().model_digest}",work="generation"'
                wanted.append(f"stratos_router_queue_depth{{{labels}}} 1.0")
                wanted.append(f"stratos_router_queued_tokens{{{labels}}} 64.0")

                async def shows_all() -> bool:
                    page = await asyncio.to_thread(_get, f"{base}/metrics")
                    return all(line in page for line in wanted)

                await eventually(shows_all)
                queued.cancel()
            assert await asyncio.to_thread(_get, f"{base}/readyz")


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return str(answer.read().decode())


def test_a_process_without_a_usable_discovery_setting_says_what_to_do() -> None:
    done = warm_process.run("stratos_router", env={**os.environ, "STRATOS_ROUTER_DISCOVERY": "etcd://somewhere"})
    assert done.returncode == 1
    assert "STRATOS_ROUTER_DISCOVERY" in done.stderr
    assert "file:///path/workers.json" in done.stderr
    assert "Traceback" not in done.stderr
