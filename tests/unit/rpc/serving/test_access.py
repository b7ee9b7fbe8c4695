"""Every method of every service against every role, through real handshakes with one server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from stratos.common.errors import PeerRefused
from stratos.common.tls.identity import WORKER_ROLES, PeerRole
from stratos.rpc.clients.channel import channel, is_serving
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.errors import from_rpc_error
from stratos.rpc.serving.access import ACCESS, MAX_TOLD, Access
from stratos.rpc.serving.server import GrpcServer
from stratos.rpc.serving.service import Service
from tests.support.api_methods import METHODS
from tests.support.servers.certificates import CertificateFolder

UNKNOWN = "/stratos.api.test.v1.TestService/Forgotten"
HEALTH_METHODS = ("Check", "Watch")  # the third, List, is not implemented by the library's servicer of asyncio


class EmptyAnswers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every method of ours, and one that the table forgot, with an empty message."""

    def service(self, details: Any) -> Any:
        method = METHODS.get(details.method)
        if method is None and details.method != UNKNOWN:
            return None

        async def unary(request: bytes, context: Any) -> bytes:
            return b""

        async def stream(requests: Any, context: Any) -> None:
            await context.write(b"")

        kinds = (method is not None and method.client_streaming, method is not None and method.server_streaming)
        return {
            (False, False): grpc.unary_unary_rpc_method_handler(unary),
            (False, True): grpc.unary_stream_rpc_method_handler(stream),
            (True, True): grpc.stream_stream_rpc_method_handler(stream),
        }[kinds]


class EmptyService(Service):
    name = "empty"

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        server.add_generic_rpc_handlers((EmptyAnswers(),))
        return []


async def _call(peer: grpc.aio.Channel, name: str) -> grpc.StatusCode | str:
    method = METHODS.get(name)
    begin = {
        (False, False): peer.unary_unary,
        (False, True): peer.unary_stream,
        (True, True): peer.stream_stream,
    }[(method is not None and method.client_streaming, method is not None and method.server_streaming)](name)
    try:
        if method is None or not method.server_streaming:
            await begin(b"", timeout=60)
        else:
            call = begin(timeout=60) if method.client_streaming else begin(b"", timeout=60)
            assert await call.read() == b""
    except grpc.aio.AioRpcError as error:
        is_refusal = isinstance(from_rpc_error(error), PeerRefused)
        return error.code() if is_refusal == (error.code() is grpc.StatusCode.PERMISSION_DENIED) else "not ours"
    return grpc.StatusCode.OK


def test_every_method_has_a_line_and_every_line_a_method() -> None:
    health = health_pb2.DESCRIPTOR.services_by_name["Health"]
    ours = {f"/{health.full_name}/{name}" for name in HEALTH_METHODS}
    assert set(ACCESS) == set(METHODS) | ours
    assert len(METHODS) > 15
    assert all(ACCESS.values())


async def test_a_method_answers_its_roles_and_no_other(tmp_path: Path) -> None:
    folder = CertificateFolder(tmp_path / "ours")
    stranger = CertificateFolder(tmp_path / "theirs", domain="theirs")
    service = EmptyService()
    service.dialer = folder.dialer(PeerRole.ROUTER)
    server = GrpcServer(service)
    address = f"127.0.0.1:{await server.listen('127.0.0.1:0', 'LISTEN')}"
    await server.set_serving(True)
    wrong = []
    for role in PeerRole:
        async with folder.dialer(role).channel(address, PeerRole.ROUTER) as peer:
            for name in (*METHODS, UNKNOWN):
                allowed = role in ACCESS.get(name, frozenset())
                expected = grpc.StatusCode.OK if allowed else grpc.StatusCode.PERMISSION_DENIED
                if (code := await _call(peer, name)) is not expected:
                    wrong.append((role, name, code))
            assert await is_serving(peer)
    assert wrong == []

    async with channel(address) as plain:
        assert await _call(plain, "/stratos.api.router.v1.RouterService/Schedule") is grpc.StatusCode.UNAVAILABLE
    async with stranger.dialer(PeerRole.GATEWAY).channel(address, PeerRole.ROUTER) as peer:
        assert await _call(peer, "/stratos.api.router.v1.RouterService/Schedule") is grpc.StatusCode.UNAVAILABLE
    await server.stop(0)


async def test_what_is_refused_is_logged_once_for_each_role(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Callers that go on without an answer say it nowhere else."""
    folder, service = CertificateFolder(tmp_path / "tls"), EmptyService()
    service.dialer = folder.dialer(PeerRole.ROUTER)
    server = GrpcServer(service)
    address = f"127.0.0.1:{await server.listen('127.0.0.1:0', 'LISTEN')}"
    for role in (PeerRole.DECODE_WORKER, PeerRole.DECODE_WORKER, PeerRole.ROUTER, PeerRole.GATEWAY):
        async with folder.dialer(role).channel(address, PeerRole.ROUTER) as peer:
            await _call(peer, "/stratos.api.router.v1.RouterService/GetFleet")
    said = [
        re.search("GetFleet is not for the role (.*)", r.getMessage())
        for r in caplog.records
        if r.levelname == "WARNING"
    ]
    assert [found and found[1] for found in said] == ["decode-worker", "router"]
    await server.stop(0)


def test_a_caller_that_names_ever_other_methods_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    access, context = Access("ours"), SimpleNamespace(auth_context=dict)
    for number in range(2 * MAX_TOLD):
        with pytest.raises(PeerRefused):
            access.check_caller(f"/stratos.api.test.v1.TestService/{number}", context)
    assert len(caplog.records) == MAX_TOLD


async def test_a_certificate_of_another_platform_is_refused_although_one_ca_signed_both(tmp_path: Path) -> None:
    folder = CertificateFolder(tmp_path / "tls")
    service = EmptyService()
    service.dialer = folder.dialer(PeerRole.ROUTER)
    server = GrpcServer(service)
    address = f"127.0.0.1:{await server.listen('127.0.0.1:0', 'LISTEN')}"
    async with folder.dialer(PeerRole.GATEWAY).channel(address, PeerRole.ROUTER) as before:
        assert await _call(before, UNKNOWN.replace("Forgotten", "None")) is grpc.StatusCode.UNIMPLEMENTED
        folder.domain = "theirs"
        folder.run()
        gateway = folder.dialer(PeerRole.GATEWAY)
        async with gateway.channel(address, PeerRole.ROUTER) as peer:
            # The caller does not take the server for a router of its platform either.
            assert await _call(peer, "/stratos.api.router.v1.RouterService/Schedule") is grpc.StatusCode.UNAVAILABLE
        material = gateway.tls.current() if gateway.tls else None
        assert material is not None
        credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)
        options = [("grpc.ssl_target_name_override", "router.stratos.stratosserve")]
        async with grpc.aio.secure_channel(address, credentials, options=options) as careless:
            code = await _call(careless, "/stratos.api.router.v1.RouterService/Schedule")
    assert code is grpc.StatusCode.PERMISSION_DENIED
    await server.stop(0)


async def test_without_mtls_nothing_is_asked() -> None:
    server = GrpcServer(EmptyService())
    address = f"127.0.0.1:{await server.listen('127.0.0.1:0', 'LISTEN')}"
    async with Dialer().channel(address, PeerRole.ROUTER) as peer:
        codes = await asyncio.gather(*(_call(peer, name) for name in METHODS))
    assert set(codes) == {grpc.StatusCode.OK}
    await server.stop(0)


@pytest.mark.parametrize(
    ("suffix", "roles"),
    [
        ("DecodeService/Session", {PeerRole.GATEWAY}),
        ("SnapshotService/FetchSnapshot", {PeerRole.GATEWAY}),
        ("LimitsService/ExchangeGateways", {PeerRole.GATEWAY}),
        ("KvSourceService/Fetch", WORKER_ROLES),
        ("CacheService/WatchCache", {PeerRole.ROUTER}),
        ("CacheService/ForgetTenant", {PeerRole.ROUTER}),
        ("RouterService/ForgetTenant", {PeerRole.GATEWAY}),
        ("RouterService/GetFleet", {PeerRole.GATEWAY, PeerRole.AUTOSCALER, PeerRole.SUPERVISOR}),
        ("RegistryService/RegisterAdapter", {PeerRole.ADMIN}),
        ("SupervisorService/StartWorker", {PeerRole.AUTOSCALER}),
        ("WorkerService/Drain", {PeerRole.AUTOSCALER, PeerRole.SUPERVISOR}),
    ],
)
def test_what_must_never_become_wider(suffix: str, roles: set[PeerRole]) -> None:
    (line,) = [allowed for name, allowed in ACCESS.items() if name.endswith(suffix)]
    assert line == roles
