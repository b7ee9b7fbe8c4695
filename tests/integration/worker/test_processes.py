"""Both worker services as real processes: started by ``python -m``, killed and stopped in the middle of a hand-off."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stratos.api.worker.v1 import decode_pb2, worker_pb2, worker_pb2_grpc
from stratos.core.fleet import WorkerStatus
from stratos.core.placement import WorkerRole
from stratos.engine.fake.runner import fake_generate
from stratos.rpc.clients.channel import channel
from stratos.rpc.codec.fleet import WORKER_STATUS
from tests.support.servers import warm_process
from tests.support.waiting import eventually
from tests.support.worlds.worker_world import (
    DECODE_WEIGHT,
    PREFILL_WEIGHT,
    World,
    environment_of,
    make_settings,
    open_world,
)

PROMPT = [(7 * i) % 4096 for i in range(900)]


class Process:
    """A worker service in a process of its own."""

    def __init__(self, role: WorkerRole, tmp_path: Path, **overrides: Any) -> None:
        self._address_file = tmp_path / f"{role.value}.json"
        environ = environment_of(make_settings(role, tmp_path, address_file=str(self._address_file), **overrides))
        self.popen = warm_process.begin(f"stratos_{role.value}_worker", env=os.environ | environ)

    @property
    def is_serving(self) -> bool:
        assert self.popen.poll() is None, self.popen.stdout.read()
        return self._address_file.exists()

    @property
    def address(self) -> str:
        return str(json.loads(self._address_file.read_text())["address"])

    async def status(self) -> WorkerStatus:
        async with channel(self.address) as peer:
            watch = worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(worker_pb2.WatchStatusRequest())
            return WORKER_STATUS.from_pb(await watch.read())

    async def exited(self) -> int:
        return await asyncio.to_thread(self.popen.wait, 100)

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        self.popen.stdout.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


async def test_both_services_run_and_stop_on_sigterm(tmp_path: Path, world: World) -> None:
    place = {"zone": "zone-1", "region": "region-2"}
    processes = [Process(role, tmp_path, **place) for role in (WorkerRole.PREFILL, WorkerRole.DECODE)]
    try:
        await eventually(lambda: all(p.is_serving for p in processes), "both serve")
        prefill, decode = [await p.status() for p in processes]
        assert (prefill.ref.role, decode.ref.role) == (WorkerRole.PREFILL, WorkerRole.DECODE)
        assert [(one.zone, one.region) for one in (prefill, decode)] == [("zone-1", "region-2")] * 2
        gateway = await world.gateway(decode.ref.address)
        stream = await (await gateway.submit(PROMPT, prefill=(prefill.ref,))).over()
        assert stream.tokens[0] == fake_generate(PROMPT, 4, prefill_weight=PREFILL_WEIGHT, decode_weight=DECODE_WEIGHT)
        assert stream.receipt.num_transferred_tokens == len(PROMPT) - 1
        await gateway.close()
        for process in processes:
            process.popen.send_signal(signal.SIGTERM)
            assert await process.exited() == 0
    finally:
        for process in processes:
            process.end()
    assert not list((tmp_path / "shm").glob("*")), "staging files were left"


async def test_a_signal_behind_the_drain_rpc_does_not_cut_streams(tmp_path: Path, world: World) -> None:
    """An orchestrator asks for the drain and then sends SIGTERM as for every process."""
    process = Process(WorkerRole.DECODE, tmp_path, fake={"step_s": 0.01}, hand_back_after_s=60.0)
    try:
        await eventually(lambda: process.is_serving, "it serves")
        gateway = await world.gateway(process.address)
        stream = await gateway.submit(PROMPT, max_tokens=60)
        await stream.wait_tokens(1)
        async with channel(process.address) as peer:
            await worker_pb2_grpc.WorkerServiceStub(peer).Drain(worker_pb2.DrainRequest())
        process.popen.send_signal(signal.SIGTERM)
        assert (await stream.over()).error is None
        assert len(stream.tokens[0]) == 60
        assert await process.exited() == 0
    finally:
        process.end()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_source_is_lost_in_the_middle(tmp_path: Path, world: World, number: signal.Signals) -> None:
    prefill = Process(WorkerRole.PREFILL, tmp_path, fake={"step_s": 0.1})
    decode = await world.start(WorkerRole.DECODE)
    try:
        await eventually(lambda: prefill.is_serving, "the prefill worker serves")
        source = (await prefill.status()).ref
        gateway = await world.gateway(decode)
        stream = await gateway.submit(PROMPT, prefill=(source,))
        received = {"direction": "received", "transport": "shm"}
        await eventually(lambda: decode.metric("stratos_kv_transfer_bytes_total", **received) > 0, "the first frame")
        assert not stream.tokens, "no token before the commit"
        prefill.popen.send_signal(number)
        receipt = (await stream.over()).receipt
        came, none = decode_pb2.PREFILL_PATH_LOCAL_TAIL, decode_pb2.PREFILL_PATH_LOCAL_FALLBACK
        assert receipt.prefill_path == (came if receipt.num_transferred_tokens else none)
        weights = {"prefill_weight": PREFILL_WEIGHT, "decode_weight": DECODE_WEIGHT}
        assert stream.tokens[0] == fake_generate(PROMPT, 4, **weights, num_prefilled=receipt.num_transferred_tokens)
        assert decode.metric("stratos_kv_handoffs_total", side="receiver", outcome="worker_lost") == 1
        if number is signal.SIGSTOP:
            await eventually(lambda: decode.process.opened.context.transports.ledger().quarantined > 0, "quarantine")
            prefill.popen.send_signal(signal.SIGCONT)
        await decode.wait_baseline()
        assert decode.process.opened.context.peers.num_suspects == 0
        if number is signal.SIGSTOP:
            while (status := await prefill.status()).num_handoffs:
                continue
            assert status.engine.blocks.allocated == 0, "the zombie freed what it held"
    finally:
        prefill.end()


def test_bad_settings_say_what_to_do(tmp_path: Path) -> None:
    for environ, text in (
        (
            {"STRATOS_DECODE_WORKER_RUNNER__MODEL_PATH": str(tmp_path / "none")},
            f"is {tmp_path / 'none'} a Hugging Face model folder",
        ),
        ({}, "needs a model"),
        ({"STRATOS_DECODE_WORKER_RUNNER__MODEL_PAHT": "x"}, "did you mean STRATOS_DECODE_WORKER_RUNNER__MODEL_PATH"),
    ):
        done = warm_process.run("stratos_decode_worker", env=os.environ | environ)
        assert done.returncode == 1
        assert text in done.stderr
        assert "Traceback" not in done.stderr
