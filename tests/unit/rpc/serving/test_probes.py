"""Probes answer while the event loop does not."""

from __future__ import annotations

import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Metric

from stratos.common.clock import FakeClock
from stratos.rpc.serving.probes import ProbeServer, Readiness
from tests.support.waiting import wait_until


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_stalled_loop_is_not_ready_and_stays_alive() -> None:
    clock = FakeClock()
    readiness = Readiness(clock, 5.0, lambda: "")
    probes = ProbeServer("127.0.0.1:0", readiness, CollectorRegistry())
    try:
        assert _get(probes.port, "/readyz") == (503, "starting\n")
        assert _get(probes.port, "/startedz") == (503, "starting\n")
        readiness.phase = ""
        assert _get(probes.port, "/readyz") == (200, "ok\n")
        clock.advance(5.1)
        assert _get(probes.port, "/readyz") == (503, "the event loop has not turned for 5.1 s\n")
        assert _get(probes.port, "/livez") == (200, "ok\n")
        readiness.beat()
        assert _get(probes.port, "/readyz")[0] == 200
    finally:
        probes.close()


def test_a_broken_readiness_check_means_not_ready() -> None:
    def broken() -> str:
        raise KeyError("worker")

    readiness = Readiness(FakeClock(), 5.0, broken)
    readiness.phase = ""
    assert readiness.reason() == "the readiness check failed: KeyError: 'worker'"


def test_a_peer_that_gave_up_waiting_is_not_told(capfd: pytest.CaptureFixture[str]) -> None:
    is_gone = threading.Event()

    class Slow:
        def collect(self) -> Iterator[Metric]:
            is_gone.wait(5)
            yield from ()

    registry = CollectorRegistry(auto_describe=False)
    probes = ProbeServer("127.0.0.1:0", Readiness(FakeClock(), 5.0, lambda: ""), registry)
    registry.register(Slow())
    before = set(threading.enumerate())
    try:
        with socket.create_connection(("127.0.0.1", probes.port)) as peer:
            peer.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            wait_until(lambda: set(threading.enumerate()) != before, what="the handler")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset
        is_gone.set()
        wait_until(lambda: set(threading.enumerate()) <= before, what="the handler's end")
    finally:
        probes.close()
    assert capfd.readouterr().err == ""


async def test_a_real_loop_that_blocks_becomes_not_ready() -> None:
    import asyncio

    from tests.support.fakes.rpc_echo import EchoService, running

    service = EchoService()
    async with running(service, stall_timeout_s=0.4):
        port = int(service.metrics_address.rpartition(":")[2])
        while (await asyncio.to_thread(_get, port, "/readyz"))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        told: list[tuple[str, int]] = []
        asking = threading.Thread(target=_ask_until_503, args=(port, told), daemon=True)
        asking.start()
        time.sleep(1.2)  # noqa: ASYNC251 - the stall is the subject of the test
        asking.join()  # it goes on until it was seen
        ((text, live),) = told
        assert live == 200
        assert (await asyncio.to_thread(_get, port, "/startedz"))[0] == 200, "a start happens once"
        assert "event loop has not turned" in text
        await asyncio.sleep(0)
        assert service.metrics.get_sample_value("stratos_event_loop_delay_seconds_sum") > 0.5


def _ask_until_503(port: int, told: list[tuple[str, int]]) -> None:
    while (answer := _get(port, "/readyz"))[0] != 503:
        continue
    told.append((answer[1], _get(port, "/livez")[0]))
