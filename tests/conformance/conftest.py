"""Engine clients of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stratos.worker.engine_client.base import EngineClient
from tests.support.worlds.engine_clients import Outputs, Start, make_client


@pytest.fixture(params=["thread", "thread-overlap", "process", "process-overlap"])
async def start(request: pytest.FixtureRequest) -> AsyncIterator[Start]:
    """Starts clients of one kind, and closes them."""
    kind, _, overlap = request.param.partition("-")
    async with AsyncExitStack() as stack:

        async def open_client(scheduler: dict[str, Any] | None = None, **fake: Any) -> tuple[EngineClient, Outputs]:
            client = make_client(kind, {"overlap": bool(overlap), **fake}, scheduler or {})
            await client.start()
            stack.push_async_callback(client.close)
            return client, Outputs(client)

        yield open_client
