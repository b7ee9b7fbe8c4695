"""The system's resolver: its threads, and which of its failures are answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from stratos.rpc.clients import name_lookup
from stratos.rpc.clients.name_lookup import NoSuchName, SystemResolver


def answers(*addresses: str, family: int = socket.AF_INET) -> list[Any]:
    return [(family, socket.SOCK_STREAM, 6, "", (address, 1)) for address in addresses]


async def test_of_both_families_the_first_is_taken_and_each_address_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answers("::1", family=socket.AF_INET6) + answers("10.0.0.2", "10.0.0.1", "10.0.0.2")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert await SystemResolver()("name", 1) == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("failure", "is_answer"),
    [
        (socket.gaierror(socket.EAI_NONAME, "no such name"), True),
        (socket.gaierror(socket.EAI_NODATA, "no addresses"), True),
        (UnicodeError("label empty"), True),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), False),
        (socket.gaierror(socket.EAI_FAIL, "failure"), False),
        (OSError("no files left"), False),
    ],
)
async def test_no_such_name_is_told_from_no_answer(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, is_answer: bool
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the type is what is tested
        await SystemResolver()("name", 1)
    assert isinstance(raised.value, NoSuchName) == is_answer


async def test_a_hanging_lookup_is_not_started_twice_and_holds_no_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, asked = threading.Event(), []

    def ask(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        if host == "hangs":
            go_on.wait()
        return answers("10.0.0.1")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    monkeypatch.setattr(name_lookup, "LOOKUP_TIMEOUT_S", 0.05)
    resolve = SystemResolver()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await resolve("hangs", 1)
    monkeypatch.setattr(name_lookup, "LOOKUP_TIMEOUT_S", 100.0)
    assert await resolve("works", 1) == ["10.0.0.1"]
    assert asked == ["hangs", "works"]
    waiting = asyncio.create_task(resolve("hangs", 1))
    go_on.set()
    assert await waiting == ["10.0.0.1"]
    assert asked == ["hangs", "works"]
