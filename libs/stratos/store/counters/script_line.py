"""A script that is called many times a second: on a connection of its own, packed and read by hand.

A turn of the caller is short, and what it runs is in no cache by then: so the less code, the better.  Whatever is not
the one text that the script answers goes to the ordinary client, with the call once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from stratos.store.counters.guard import GuardedScript, StoreId, any_store, known
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import BROKEN, DEFAULT_TIMEOUT_S


class ScriptLine:
    """Belongs to the event loop.

    Args:
        redis: with decoded answers; one of its connections is kept.
        config: where the store's marker lies.
        text: of the script, which may run twice; all its keys are declared, and it answers one text of ASCII.
        store_id: of the store that is followed; ``None`` before it is known.
        first: arguments that all calls begin with.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        text: str,
        store_id: StoreId = any_store,
        first: Sequence[bytes] = (),
    ) -> None:
        self._redis = redis
        self._script = GuardedScript(redis, config, text, store_id)
        self._marker = f"{config.prefix}:store".encode()
        self._store_id = store_id
        self._first = first
        self._keys: Sequence[bytes] = ()
        """Of the last call, and what begins a call with them and so many arguments."""
        self._num_args = -1
        self._head = b""
        options: Any = redis.connection_pool.connection_kwargs
        self.timeout_s = float(options.get("socket_timeout") or DEFAULT_TIMEOUT_S)
        """Of a connection, and of an answer: those of the client, as its URL may set them."""
        self._connection: Any = None
        self._line: _AnswerReader | None = None
        self._calling = asyncio.Lock()

    async def __call__(self, keys: Sequence[bytes], args: Sequence[bytes]) -> str:
        """Run it; called within ``translate_redis_errors``.

        Raises:
            DependencyDown: it is not known yet which store is followed.
        """
        if keys != self._keys or len(args) != self._num_args:
            self._begin_with(keys, len(args))
        command = b"".join([self._head, *map(_part, args), _part(known(self._store_id).encode())])
        async with self._calling:
            try:
                found = await self._exchange(command)
            except (*BROKEN, ConnectionError):
                found = None
        if found is None:  # an error, or a connection from before a restart
            return str(await self._script([key.decode() for key in keys], [*self._first, *args]))
        return found

    def _begin_with(self, keys: Sequence[bytes], num_args: int) -> None:
        """Pack what is the same in calls of these keys."""
        parts = b"EVALSHA", self._script.sha, b"%d" % (len(keys) + 1), *keys, self._marker, *self._first
        self._head = b"*%d\r\n%b" % (len(parts) + num_args + 1, b"".join(map(_part, parts)))
        self._keys, self._num_args = keys, num_args

    async def _exchange(self, command: bytes) -> str | None:
        """Ask and be answered; a connection that was left in between is not used again."""
        if self._line is None or not self._line.is_open:
            self._line = await self._opened()
        return await self._line.ask(command, self.timeout_s)

    async def _opened(self) -> _AnswerReader:
        """The transport of a connection that the ordinary client has made, as it does for any server."""
        async with asyncio.timeout(self.timeout_s):
            if self._connection is None:
                pool: Any = self._redis.connection_pool
                self._connection = await pool.get_connection()
            else:
                await self._connection.disconnect(nowait=True)
                await self._connection.connect()
        return _AnswerReader(self._connection._writer.transport)  # nothing public says what it is


class _AnswerReader(asyncio.Protocol):
    """One question at a time.

    Args:
        transport: connected, with nothing to be read.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._before = transport.get_protocol()
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[str | None] = self._loop.create_future()
        self._data = b""
        self._late_s = 0.0
        """When the question has waited for too long."""
        self._timer: asyncio.TimerHandle | None = None
        """Looks then: one for many questions, as nearly all are answered long before."""
        self.is_open = True
        transport.set_protocol(self)

    async def ask(self, command: bytes, timeout_s: float) -> str | None:
        """The text that is answered; ``None`` for another answer. Raises ``TimeoutError``, ``ConnectionError``."""
        waiting: asyncio.Future[str | None] = self._loop.create_future()
        self._waiting = waiting
        self._late_s = self._loop.time() + timeout_s
        if self._timer is None or self._timer.when() > self._late_s:
            self._stop_timer()
            self._timer = self._loop.call_at(self._late_s, self._look)
        try:
            self._transport.write(command)
            return await waiting
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Use it no more."""
        self.is_open = False
        self._stop_timer()
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Part of an answer, nearly always all of it."""
        data = self._data = self._data + data if self._data else data
        head, mark, rest = data.partition(b"\r\n")
        if not mark:
            return
        text = None
        if head[:1] == b"$":
            size = int(head[1:])
            if len(rest) < size + 2:
                return
            text = rest[:size].decode()
        else:
            self.close()  # it may be longer than this
        self._data = b""
        if not self._waiting.done():
            self._waiting.set_result(text)

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing more comes."""
        self.is_open = False
        self._stop_timer()
        self._before.connection_lost(error)
        if not self._waiting.done():
            self._waiting.set_exception(ConnectionError("the connection was lost"))

    def _look(self) -> None:
        self._timer = None
        if self._waiting.done():
            return
        if self._loop.time() < self._late_s:
            self._timer = self._loop.call_at(self._late_s, self._look)
        else:
            self._waiting.set_exception(TimeoutError("no answer"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _part(part: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(part), part)
