"""The share of Redis's memory for what grows, and its files: usage and answers must leave room for keys and limits.

Redis is asked once in a while, so writes may pass the share by what comes in between. It is asked without writes, too:
its state is shown, and would be as old as the last write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown, StratosError
from stratos.store.redis import translate_redis_errors

_LOOK_S = 1.0
_SHOW_S = 15.0
"""Between looks where nothing is written."""
_OLD_S = 60.0
"""What Redis said of its files longer ago is not shown."""
_FILES = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
"""Of what Redis tells of its files: "ok", or "err" until one is written again, as after a full disk."""


class MemoryShare:
    """Belongs to the event loop.

    Args:
        redis: whose memory it is.
        share: part of ``maxmemory`` beyond which the ledger writes nothing, and nothing more is kept of answers.
        clock: monotonic.
        note: told of each look, which part of ``maxmemory`` is used; 0 where there is no bound.
        note_file: told of each look, whether Redis could not write its last file.
    """

    def __init__(
        self,
        redis: Redis,
        share: float,
        clock: Clock,
        note: Callable[[float], None] = lambda used: None,
        note_file: Callable[[bool], None] = lambda has_failed: None,
    ) -> None:
        self._redis = redis
        self._share = share
        self._clock = clock
        self._note = note
        self._note_file = note_file
        self.server = ""
        """Name of the server that answered last: another one after a restart or a failover; "" where it tells none."""
        self._used = 0.0
        self._due_s: float | None = None
        self._heard_s = clock.now()

    async def check(self) -> None:
        """Ask for room.

        Raises:
            DependencyDown: the rest is for other records; or Redis does not answer.
        """
        await self._refresh()
        if self._used >= self._share:
            raise DependencyDown(f"{self._used:.0%} of Redis's maxmemory is used; the rest is not for the ledger")

    def has_room(self) -> bool:
        """Whether there was some at the last look, which is a second old where usage is written, else at most 15."""
        return self._used < self._share

    async def run(self) -> None:
        """Look whether or not anything is written, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_SHOW_S)

    async def look(self) -> None:
        """Show what Redis says; nothing is said of the file of one that has not answered for a minute."""
        try:
            await self._refresh()
        except (StratosError, RedisError):
            if self._clock.now() - self._heard_s > _OLD_S:
                self._note_file(False)

    async def _refresh(self) -> None:
        now_s = self._clock.now()
        if self._due_s is None or now_s >= self._due_s:
            self._used = await self._look()
            self._due_s, self._heard_s = now_s + _LOOK_S, now_s
            self._note(self._used)

    async def _look(self) -> float:
        try:
            with translate_redis_errors():
                info: Mapping[str, Any] = await self._redis.info("memory")
                files: Mapping[str, Any] = await self._redis.info("persistence")
                server: Mapping[str, Any] = await self._redis.info("server")
        except ResponseError:  # a server or a user without this command: its bound is not known
            return 0.0
        self.server = str(server.get("run_id", ""))
        self._note_file(any(files.get(name, "ok") != "ok" for name in _FILES))
        bound = int(info.get("maxmemory", 0))
        return int(info.get("used_memory", 0)) / bound if bound else 0.0
