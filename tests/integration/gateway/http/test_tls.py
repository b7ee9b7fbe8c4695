"""TLS of the OpenAI API: streams, rotation under an open stream, files that cannot be used, silent handshakes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from stratos.rpc.binding import StartError
from stratos_gateway.http.settings import HttpTlsConfig
from stratos_gateway.http.tls import api_context
from tests.support.promises import Promised
from tests.support.servers.server_certificates import Authority
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import World, gateway_world, say

STORY = "one two three four five six seven eight nine ten eleven twelve " * 4
ASK = {"model": "base", "prompt": "x", "max_tokens": 400, "stream": True}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.issue()
    return made


def settings(authority: Authority) -> Mapping[str, Any]:
    return {"http_tls": {"certificate_path": authority.certificate_path, "key_path": authority.key_path}}


def client(world: World, authority: Authority) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"https://{world.service.http_address}",
        headers={"authorization": f"Bearer {KEY}"},
        timeout=LIMIT_S,
        verify=authority.client_context(),
    )


async def shown_serial(world: World, authority: Authority) -> int:
    """Of the certificate that a new connection gets."""
    host, port = world.service.http_address.split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=authority.client_context())
    serial = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return int(serial, 16)


async def test_certificates_rotate_under_an_open_stream(authority: Authority) -> None:
    async with gateway_world(**settings(authority)) as world, client(world, authority) as http:
        world.worker.script, world.worker.step_s = say(STORY), 0.005
        async with http.stream("POST", "/v1/completions", json=ASK) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            first = await anext(lines)
            old = await shown_serial(world, authority)
            new = authority.issue()
            expiry = world.metric("stratos_http_certificate_expiry_timestamp_seconds")
            assert await shown_serial(world, authority) == new != old
            assert world.metric("stratos_http_certificate_expiry_timestamp_seconds") == authority.not_after_unix_s()
            assert expiry != authority.not_after_unix_s()
            rest = [line async for line in lines if line]
        assert first.startswith("data: {")
        assert rest[-1] == "data: [DONE]"
        assert (await http.get("/v1/models")).status_code == 200


async def test_files_that_do_not_fit_together_leave_the_certificate_of_before(authority: Authority, caplog) -> None:
    async with gateway_world(**settings(authority)) as world:
        first = await shown_serial(world, authority)
        old_key = authority.key_path.read_bytes()
        second = authority.issue()
        new_key = authority.key_path.read_bytes()
        authority.key_path.write_bytes(old_key)  # half of a rotation
        for _ in range(3):
            assert await shown_serial(world, authority) == first
        assert caplog.text.count("cannot be used") == 1
        authority.key_path.write_bytes(new_key)
        assert await shown_serial(world, authority) == second
        authority.certificate_path.unlink()
        assert await shown_serial(world, authority) == second


def test_a_process_without_a_usable_certificate_does_not_start(authority: Authority) -> None:
    config = HttpTlsConfig(certificate_path=authority.certificate_path, key_path=authority.key_path)
    api_context(config)
    authority.key_path.write_bytes(b"no key")
    with pytest.raises(StartError, match="certificate"):
        api_context(config)
    authority.key_path.unlink()
    with pytest.raises(StartError, match="certificate"):
        api_context(config)


async def test_old_protocols_plain_text_and_silence_are_no_handshake(authority: Authority, promised: Promised) -> None:
    async with gateway_world(http={"head_timeout_s": 0.3}, **settings(authority)) as world:
        host, port = world.service.http_address.split(":")
        old = authority.client_context()
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
        _, writer = await asyncio.open_connection(host, int(port), ssl=old)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
        writer.close()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200" not in await reader.read()
        writer.close()
        reader, writer = await asyncio.open_connection(host, int(port))
        with promised("a connection without a handshake is closed", 5.0):
            assert await reader.read() == b""
        writer.close()
        await eventually(lambda: world.metric("stratos_http_connections") == 0, "all are closed")
