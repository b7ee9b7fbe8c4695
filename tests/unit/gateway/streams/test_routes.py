"""Statuses of streams that are asked for by their ids."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from stratos.common.errors import DependencyDown, NotFound
from stratos_gateway.streams.asking import stream_id
from stratos_gateway.streams.routes import RecordedStreams

KEY = b"k" * 32
TENANT: Any = SimpleNamespace(id="ten_a")


async def authenticate(_: object) -> Any:
    return TENANT


def streams(key: bytes | None = KEY, state: str = "open") -> RecordedStreams:
    """Routes over a store that knows the tenant by this key, and has records of this state."""

    async def cancel(tenant_id: str, stream: str) -> str:
        return state

    store: Any = SimpleNamespace(key=lambda tenant_id: key, cancel=cancel)
    return RecordedStreams(authenticate, store)


def test_a_gateway_that_lacks_the_tenants_key_does_not_say_that_there_is_no_stream() -> None:
    """A client that hears so never comes back."""
    known = stream_id(KEY, "a key")
    assert streams().store_of(TENANT, known)[1] == KEY
    with pytest.raises(DependencyDown):
        streams(None).store_of(TENANT, known)
    for found, name in ((streams(), known[:-1]), (RecordedStreams(authenticate, None), known)):
        with pytest.raises(NotFound):
            found.store_of(TENANT, name)


@pytest.mark.parametrize(
    ("before", "status"),
    [("open", "cancelled"), ("cancelled", "cancelled"), ("done", "completed"), ("failed", "failed")],
)
async def test_what_has_ended_is_told_as_it_ended(before: str, status: str) -> None:
    request: Any = SimpleNamespace(path_params={"stream_id": stream_id(KEY, "a key")})
    answer = await streams(state=before).cancel(request)
    assert orjson.loads(answer.body)["status"] == status
