"""An issuer whose document never ends holds no fetch for longer than its time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from stratos_gateway.oidc.fetching import FetchFailed, fetch_keys
from stratos_gateway.oidc.settings import OidcIssuer


async def test_a_document_that_drips_fails_its_fetch() -> None:
    is_asked, is_over, has_left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            is_asked.set()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while not is_over.is_set():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        has_left.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        issuer = OidcIssuer(issuer=url, audience="a", jwks_url=f"{url}/keys", tenants=("t",))
        while not is_asked.is_set():  # on a busy machine the time may be over before there is a connection
            with pytest.raises(FetchFailed, match="within"):
                await fetch_keys(issuer, 0.5)
        is_over.set()
        await has_left.wait()
