"""What is shown of Redis's file where nothing is written: a look of its own finds it, and it does not stay for ever."""

from __future__ import annotations

from typing import Any, cast

import pytest
from redis.asyncio import Redis

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown
from stratos.store.ledger.memory_share import MemoryShare


class Server:
    """Answers ``INFO``."""

    def __init__(self) -> None:
        self.status = "ok"
        self.is_down = False
        self.used = 0

    async def info(self, section: str) -> dict[str, Any]:
        if self.is_down:
            raise ConnectionError("gone")
        if section == "persistence":
            return {"aof_last_write_status": self.status}
        return {"maxmemory": 1000 if self.used else 0, "used_memory": self.used}


async def test_a_file_that_fails_is_found_without_writes_and_is_forgotten_with_a_redis_that_is_away() -> None:
    clock, server, shown = FakeClock(), Server(), list[bool]()
    share = MemoryShare(cast("Redis", server), 0.8, clock, note_file=shown.append)
    await share.look()
    server.status = "err"
    clock.advance(15)
    await share.look()
    assert shown == [False, True]
    server.is_down = True
    clock.advance(15)
    await share.look()
    assert shown == [False, True], "one answer that is missing says nothing"
    clock.advance(50)
    await share.look()
    assert shown == [False, True, False]
    with pytest.raises(DependencyDown):
        await share.check()


async def test_what_keeps_answers_asks_the_last_look_and_not_the_server() -> None:
    clock, server = FakeClock(), Server()
    share = MemoryShare(cast("Redis", server), 0.8, clock)
    assert share.has_room()
    for used, has_room in ((800, False), (799, True)):
        server.used = used
        clock.advance(1)
        await share.look()
        server.is_down = True
        assert share.has_room() == has_room
        server.is_down = False
