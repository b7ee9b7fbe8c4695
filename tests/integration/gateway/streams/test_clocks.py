"""Two gateways whose machines differ in what time it is: what one of them dates, the other judges by the store's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stratos.common.errors import Overloaded
from tests.integration.gateway.streams.test_background import begin, call, ended, text_of
from tests.integration.gateway.streams.test_continuations import ask, cut, token_in
from tests.integration.gateway.streams.test_files import lines, upload
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import TEXT, contents, stream_worlds

YEAR_S = 365 * 86_400


@dataclass
class Machine:
    """Its wall clock is this far ahead."""

    ahead_s: float = 0.0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine of both gateways, put ahead between what one does and what the other does."""
    found, real = Machine(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + found.ahead_s)
    return found


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path, machine: Machine) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as found:
        yield found


async def test_a_token_is_redeemed_where_it_is_a_year_later(worlds: list[AdminWorld], machine: Machine) -> None:
    one, two = worlds
    for key in ("", "k"):  # with a record of the answer, too
        machine.ahead_s = 0.0
        first = await cut(one, key=key)
        machine.ahead_s = YEAR_S
        rest = await ask(two, continuation_token=token_in(first))
        assert rest.status_code == 200, rest.text
        assert contents(first)[0] + rest.json()["choices"][0]["text"] == TEXT


async def test_a_background_response_is_tried_again_where_it_is_a_year_later(
    worlds: list[AdminWorld], machine: Machine
) -> None:
    for world in worlds:
        world.router.errors = [Overloaded("no worker has room", after_s=0.05)] * 1000
    begun = await begin(worlds[0])
    machine.ahead_s = YEAR_S
    num_asked = sum(len(world.router.requests) for world in worlds)

    async def is_refused_again() -> bool:
        return sum(len(world.router.requests) for world in worlds) > num_asked + 2

    await eventually(is_refused_again, "it was tried again")
    for world in worlds:
        world.router.errors.clear()
    found = await ended(worlds[1], begun["id"])
    assert (found["status"], text_of(found)) == ("completed", TEXT)


async def test_a_file_is_listed_where_it_is_a_year_later(worlds: list[AdminWorld], machine: Machine) -> None:
    one, two = worlds
    file = (await upload(one, lines(1))).json()
    machine.ahead_s = YEAR_S
    listed = (await call(two, "GET", "/v1/files")).json()["data"]
    assert [found["id"] for found in listed] == [file["id"]]
