"""A real autoscaler and a real router: a backlog brings a worker, quiet drains it, a lost peer changes nothing."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc.aio

from stratos.api.common.v1 import common_pb2
from stratos.api.supervisor.v1 import supervisor_pb2, supervisor_pb2_grpc
from stratos.cli.decisions import given_autoscaler, read_decisions
from stratos.cli.local.lease import Lease
from stratos.common.clock import SystemClock
from stratos.core.placement import WorkerRole
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.router_world import (
    FakeWorker,
    ask,
    entry,
    finished,
    make_status,
    router_process,
    service_process,
    until_live,
    write_discovery,
)


class Supervisor(supervisor_pb2_grpc.SupervisorServiceServicer):
    """Starts fake workers in this process and keeps the discovery file."""

    def __init__(self, discovery: Path) -> None:
        self.discovery = discovery
        self.workers: dict[str, FakeWorker] = {}
        self.calls: list[tuple[str, str]] = []
        self.lease = Lease(SystemClock())
        self.server = grpc.aio.server()
        supervisor_pb2_grpc.add_SupervisorServiceServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def start(self) -> None:
        await self.server.start()
        await self._add("decode-0")

    async def stop(self) -> None:
        await self.server.stop(None)
        for worker in self.workers.values():
            await worker.stop()

    async def _add(self, name: str) -> FakeWorker:
        worker = self.workers[name] = FakeWorker(make_status(name, WorkerRole.DECODE, max_num_seqs=2))
        await worker.start()
        write_discovery(self.discovery, *map(entry, self.workers.values()))
        return worker

    async def ListProcesses(self, request: Any, context: Any) -> Any:
        role = common_pb2.WORKER_ROLE_DECODE
        processes = [supervisor_pb2.Process(name="gateway", state="serving")]
        processes += [supervisor_pb2.Process(name=name, state="serving", role=role) for name in self.workers]
        return supervisor_pb2.ListProcessesResponse(processes=processes)

    async def HoldLease(self, request: Any, context: Any) -> Any:
        return supervisor_pb2.HoldLeaseResponse(is_held=self.lease.hold(request.holder, request.ttl_ms / 1000))

    async def StartWorker(self, request: Any, context: Any) -> Any:
        name = f"decode-{len(self.workers)}"
        self.calls.append(("start", name))
        self.lease.check(request.holder)
        assert request.role == common_pb2.WORKER_ROLE_DECODE
        worker = await self._add(name)
        return supervisor_pb2.StartWorkerResponse(process=supervisor_pb2.Process(name=name, address=worker.address))

    async def DrainWorker(self, request: Any, context: Any) -> Any:
        self.calls.append(("drain", request.name))
        self.workers[request.name].set(is_draining=True)
        return supervisor_pb2.DrainWorkerResponse()


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def _is_status(url: str, wanted: int) -> bool:
    return await asyncio.to_thread(_status, url) == wanted


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return str(answer.read().decode())


async def test_a_backlog_brings_a_worker_and_quiet_drains_it_again(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "workers.json")
    await supervisor.start()
    try:
        async with router_process(
            tmp_path, f"file://{supervisor.discovery}", admission__max_waiting_per_worker="0"
        ) as client:
            await until_live(client, "decode-0")
            (tmp_path / "scaler").mkdir()
            settings = {
                "router_addresses": json.dumps([client.address]),
                "supervisor_address": supervisor.address,
                "poll_interval_s": "0.1",
                "planner__quiet_s": "1",
                "planner__up_queue_depth": "0",
                "planner__cooldown_down_s": "0.5",
                "not_ready_after_s": "0.5",
            }
            async with service_process("stratos_autoscaler", tmp_path / "scaler", settings) as found:
                base = f"http://{found['metrics_address']}"
                first = [await client.schedule(ask(f"req-{index}")) for index in range(2)]
                supervisor.workers["decode-0"].set(num_running=2)
                waiting = await client.schedule(ask("req-2"))
                assert supervisor.calls == [("start", "decode-1")]
                assert waiting.decode.worker_id == "decode-1"
                supervisor.workers["decode-1"].set(num_running=1)
                supervisor.workers["decode-0"].set(num_running=0)
                for placement in first:
                    await client.complete([finished(placement)])
                await eventually(lambda: len(supervisor.calls) == 2)
                assert supervisor.calls[1] == ("drain", "decode-0"), "the one without requests leaves"
                page = await asyncio.to_thread(_page, f"{base}/metrics")
                assert 'stratos_autoscaler_desired_workers{model="",role="decode"} 1.0' in page
                # two requests fill both batch slots before the third request waits: either may be noticed first
                assert re.search(
                    r'decisions_total{direction="up",model="",reason="(queue|batch_slots)",role="decode"} 1.0', page
                )
                await eventually(lambda: _is_status(f"{base}/readyz", 200))
                told = await read_decisions(given_autoscaler(found["address"], None), 0)
                assert told.is_active
                (up,) = [decision for decision in told.decisions if decision.direction == "up"]
                assert (up.role, up.mode, up.desired, up.inputs.num_live) == ("decode", "planner", 2, 1)
                (down,) = [decision for decision in told.decisions if decision.direction == "down"]
                assert (down.reason, down.victim) == ("quiet", "decode-0")
                await supervisor.server.stop(None)
                await eventually(lambda: _is_status(f"{base}/readyz", 503))
                assert len(supervisor.calls) == 2
    finally:
        await supervisor.stop()


async def test_a_held_request_wakes_a_pool_at_zero_and_quiet_lets_it_sleep_again(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "workers.json")
    await supervisor.server.start()
    write_discovery(supervisor.discovery)
    queue = {"queue__ttl_s": "0.2", "queue__wake_timeout_s": "30"}
    try:
        async with router_process(tmp_path, f"file://{supervisor.discovery}", **queue) as client:
            (tmp_path / "scaler").mkdir()
            settings = {
                "router_addresses": json.dumps([client.address]),
                "supervisor_address": supervisor.address,
                "poll_interval_s": "0.1",
                "pools": json.dumps([{"role": "decode", "min_workers": 0, "max_workers": 2}]),
                "planner__idle_s": "1",
            }
            async with service_process("stratos_autoscaler", tmp_path / "scaler", settings) as found:
                target = given_autoscaler(found["address"], None)

                async def is_asleep() -> bool:
                    decisions = (await read_decisions(target, 1)).decisions
                    return bool(decisions and decisions[-1].reason == "asleep")

                await eventually(is_asleep)
                assert supervisor.calls == []
                placement = await client.schedule(ask("req-0"))
                assert supervisor.calls == [("start", "decode-0")]
                assert placement.decode.worker_id == "decode-0"
                await client.complete([finished(placement)])
                await eventually(lambda: supervisor.calls[1:] == [("drain", "decode-0")])
    finally:
        await supervisor.stop()
