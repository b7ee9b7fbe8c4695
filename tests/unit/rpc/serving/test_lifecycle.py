"""The life of a service inside a running loop."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import grpc.aio
import httpx
import pytest

from stratos.api.lora.v1 import registry_pb2, registry_pb2_grpc
from stratos.common.errors import InvalidCheckpoint
from stratos.rpc.clients.channel import channel, is_serving, wait_serving
from tests.support.fakes.rpc_echo import REGISTRY, EchoService, running


async def test_order_of_a_clean_life(tmp_path: Path) -> None:
    service, address_file = EchoService(), tmp_path / "echo.json"
    async with running(service, address_file=str(address_file)) as run:
        async with channel(service.address) as peer:
            await wait_serving(peer, REGISTRY, timeout_s=60)
            content = json.loads(address_file.read_text())
            assert content["address"] == service.address
            assert content["metrics_address"] == service.metrics_address
        run.stop.set()
        assert await run.task == 0
    assert service.events == ["open", "warm_up True", "drain", "close"]
    assert not address_file.exists()


async def test_a_root_task_that_ends_is_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    service = EchoService()

    async def dies() -> None:
        await service.serving.wait()
        raise RuntimeError("step loop broke")

    service.root_tasks = {"step loop": dies()}
    async with running(service) as run:
        assert await run.task == 1
    assert service.events[-1] == "close"
    assert "root task 'step loop' ended" in caplog.text
    assert "step loop broke" in caplog.text


async def test_a_failed_open_closes_and_says_why_without_traceback(caplog: pytest.LogCaptureFixture) -> None:
    service = EchoService()
    service.open_error = InvalidCheckpoint("models/base has no weights; train it")
    async with running(service) as run:
        assert await run.task == 1
    assert service.events == ["open", "close"]
    assert "models/base has no weights; train it" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("field", ["listen", "metrics_listen"])
async def test_a_busy_port_is_named_with_what_to_do(field: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with running(EchoService(), **{field: f"127.0.0.1:{port}"}) as run:
            assert await run.task == 1
    assert f"port {port} is in use" in caplog.text
    assert f"set STRATOS_ECHO_{field.upper()} to another port" in caplog.text
    assert "Traceback" not in caplog.text


async def test_an_unusable_address_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    async with running(EchoService(), listen="8080") as run:
        assert await run.task == 1
    assert "'8080' is not host:port" in caplog.text


async def test_an_open_unary_call_ends_before_the_server_stops() -> None:
    service, entered, release = EchoService(), asyncio.Event(), asyncio.Event()

    async def slow(_: str) -> None:
        entered.set()
        await release.wait()

    service.on_list = slow
    async with running(service, stop_grace_s=0.0) as run, channel(service.address) as peer:
        call = registry_pb2_grpc.RegistryServiceStub(peer).ListAdapters(registry_pb2.ListAdaptersRequest())
        await entered.wait()
        run.stop.set()
        await _wait_not_serving(peer)
        assert not run.task.done()
        release.set()
        assert await call == registry_pb2.ListAdaptersResponse()
        assert await run.task == 0


async def test_a_drain_that_hangs_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    service = EchoService()
    service.drain_event = asyncio.Event()
    async with running(service, drain_timeout_s=0.1) as run:
        run.stop.set()
        assert await run.task == 0
    assert "drain took longer than 0.1 s" in caplog.text
    assert service.events[-1] == "close"


async def test_probes_follow_readiness_and_show_metrics() -> None:
    service = EchoService()
    async with (
        running(service) as run,
        httpx.AsyncClient(base_url=f"http://{service.metrics_address}", timeout=60) as http,
    ):
        async with channel(service.address) as peer:
            await wait_serving(peer, timeout_s=60)
            assert (await http.get("/readyz")).status_code == 200
            service.reason = "step loop stalled"
            answer = await http.get("/readyz")
            assert (answer.status_code, answer.text) == (503, "step loop stalled\n")
            assert (await http.get("/livez")).status_code == 200
            await _wait_not_serving(peer, REGISTRY)  # gRPC health follows within a beat
            service.reason = ""
            await wait_serving(peer, REGISTRY, timeout_s=60)
        metrics = (await http.get("/metrics")).text
        assert 'stratos_rpc_duration_seconds_count{code="OK",method="Check",service="echo"}' in metrics
        assert (await http.get("/nothing")).status_code == 404
        run.stop.set()


async def _wait_not_serving(peer: grpc.aio.Channel, service: str = "") -> None:
    while await is_serving(peer, service):  # noqa: ASYNC110 - polls over the wire
        await asyncio.sleep(0.01)
