"""Certificates and CAs change under open streams: no stream breaks, and new connections show the new ones."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.common.tls.identity import PeerRole
from stratos.pki.renewal import RenewalWishes
from stratos.rpc.clients.dialer import Dialer
from tests.support.fakes.rpc_echo import EchoService, running
from tests.support.servers.certificates import CertificateFolder


class Steps:
    """What the server streams: a number for each that the test asks for."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[int] = asyncio.Queue()

    async def watch(self) -> AsyncIterator[int]:
        while True:
            yield await self._asked.get()

    async def next(self, stream: Any, number: int) -> None:
        """One more message passes the open stream."""
        self._asked.put_nowait(number)
        assert (await stream.read()).engine_step == number


async def _check(peer: grpc.aio.Channel) -> None:
    await health_pb2_grpc.HealthStub(peer).Check(health_pb2.HealthCheckRequest(), timeout=10)


async def _is_refused(dialer: Dialer, address: str) -> bool:
    async with dialer.channel(address, PeerRole.LORA_REGISTRY) as peer:
        try:
            await _check(peer)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_a_stream_outlives_the_replacement_of_its_ca(tmp_path: Path) -> None:
    folder = CertificateFolder(tmp_path / "now")
    shutil.copytree(folder.path, tmp_path / "before")
    outdated = CertificateFolder(tmp_path / "before").dialer(PeerRole.DECODE_WORKER)
    service, steps = EchoService(), Steps()
    service.on_watch = steps.watch
    async with running(service, **folder.settings(PeerRole.LORA_REGISTRY)):
        peer = folder.dialer(PeerRole.DECODE_WORKER).channel(service.address, PeerRole.LORA_REGISTRY)
        stream = worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(worker_pb2.WatchStatusRequest())
        await steps.next(stream, 1)

        assert folder.run(RenewalWishes(rotate_ca=True)).num_authorities == 2  # announced
        await _check(peer)
        assert not await _is_refused(outdated, service.address)
        await steps.next(stream, 2)

        assert "gateway" in folder.run().written  # it signs
        await _check(peer)
        await steps.next(stream, 3)

        assert folder.run().num_authorities == 1  # the old one is gone
        await _check(peer)
        assert await _is_refused(outdated, service.address)
        await steps.next(stream, 4)
        stream.cancel()
        await peer.close()


async def test_a_connection_that_is_made_again_shows_the_newest_certificate(tmp_path: Path) -> None:
    """The same client object reaches a server that no longer trusts the certificate that it began with."""
    folder = CertificateFolder(tmp_path / "tls")
    first, second = EchoService(), EchoService()
    own = "127.0.0.7:0"  # nothing else takes a port of this address in between
    async with running(first, listen=own, **folder.settings(PeerRole.LORA_REGISTRY)):
        address = first.address
        peer = folder.dialer(PeerRole.GATEWAY).channel(address, PeerRole.LORA_REGISTRY)
        await _check(peer)
    for wishes in (RenewalWishes(rotate_ca=True), None, None):
        folder.run(wishes)
    async with running(second, listen=address, **folder.settings(PeerRole.LORA_REGISTRY)):
        await _check(peer)
    await peer.close()


async def test_files_that_cannot_be_used_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = CertificateFolder(tmp_path / "tls")
    service = EchoService()
    async with running(service, **folder.settings(PeerRole.LORA_REGISTRY)):
        dialer = folder.dialer(PeerRole.GATEWAY)
        (folder.path / PeerRole.LORA_REGISTRY / "tls.key").write_text("half a k")
        (folder.path / PeerRole.GATEWAY / "tls.crt").unlink()
        for _ in range(2):
            async with dialer.channel(service.address, PeerRole.LORA_REGISTRY) as peer:
                await _check(peer)
    problems = [record.message for record in caplog.records if "stays in use" in record.message]
    assert len(problems) == 2, "once for each side"


async def test_a_service_without_a_usable_certificate_does_not_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CertificateFolder(tmp_path / "tls")
    (folder.path / PeerRole.ROUTER / "tls.crt").write_bytes((folder.path / PeerRole.GATEWAY / "tls.crt").read_bytes())
    async with running(EchoService(), **folder.settings(PeerRole.ROUTER)) as run:
        assert await run.task == 1
    assert "tls.key is not the key of" in caplog.text
    assert "STRATOS_ECHO_TLS" in caplog.text
