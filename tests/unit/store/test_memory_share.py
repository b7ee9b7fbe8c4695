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

    async def info(self, section: str) -> dict[str, Any]:
        if self.is_down:
            raise ConnectionError("gone")
        return {"aof_last_write_status": self.status} if section == "persistence" else {"maxmemory": 0}


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
