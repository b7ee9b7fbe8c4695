"""The receiving end: one port, a connection and a reading thread per pair.

A frame is read into its slot by the thread, without a copy of ours and without the event loop, once its receive is
posted: header (over gRPC) and payload come in any order.  A posted frame that is not there after ``timeout_s`` breaks
the pair, as does the end of the connection.  A sender that dials again, for fresh keys or with a new certificate,
does so before it ends the connection of before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator

from stratos.common.errors import Overloaded
from stratos.common.tls.contexts import TlsContexts
from stratos.kv_transfer.accepting import Accepting
from stratos.kv_transfer.blocking import BlockingThreads
from stratos.kv_transfer.settings import StagingConfig, TlsTransportConfig
from stratos.kv_transfer.tls.wire import FRAME_HEAD, SECRET_BYTES, accept, read_into, tag_of, wake, welcome
from stratos.kv_transfer.transfer import FrameArrived, FrameHeader, PortListener, Ring, RingBroken

_log = logging.getLogger(__name__)


class _TlsRing(Ring):
    completes_on_sent = False

    def __init__(
        self, pair: str, address: str, config: StagingConfig, timeout_s: float, forget: Callable[[], None]
    ) -> None:
        self.address = address
        self._pair, self._forget = pair, forget
        self._slot_bytes = config.slot_bytes
        self._timeout_s = timeout_s
        self._memory = memoryview(bytearray(config.slot_bytes * config.slots_per_pair))
        self._loop = asyncio.get_running_loop()
        self._threads = BlockingThreads(f"kv-tls {pair}", 1)
        self._dialled: asyncio.TimerHandle | None = None
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        # What follows is shared with the thread, under the condition.
        self._changed = threading.Condition()
        self._announced: dict[bytes, FrameHeader] = {}
        self._coming: deque[ssl.SSLSocket] = deque()
        self._num_expected = 0
        self._current: ssl.SSLSocket | None = None
        self._is_closed = False

    def start(self, publish: PortListener) -> None:
        """Let the sender come."""
        self._publish = publish
        self._dialled = self._loop.call_later(self._timeout_s, self._broken, "the source did not connect")

    def payload(self, slot: int, num_bytes: int) -> memoryview:
        return self._place(slot, num_bytes).toreadonly()

    def _place(self, slot: int, num_bytes: int) -> memoryview:
        return self._memory[slot * self._slot_bytes :][:num_bytes]

    def announce_frame(self, header: FrameHeader) -> None:
        tag = tag_of(header)
        late = f"frame {header.seq} timed out"
        self._timers[tag] = self._loop.call_later(self._timeout_s, self._broken, late)
        with self._changed:
            self._announced[tag] = header
            self._changed.notify_all()

    def close(self) -> asyncio.Future[None]:
        self._forget()
        if self._dialled is not None:
            self._dialled.cancel()
        for timer in self._timers.values():
            timer.cancel()
        with self._changed:
            self._is_closed = True
            for connection in self._coming:
                connection.close()
            self._coming.clear()
            if self._current is not None:
                wake(self._current)
            self._changed.notify_all()
        return self._threads.close()

    @contextlib.contextmanager
    def expecting(self) -> Iterator[None]:
        """A connection of this pair is about to be adopted: the end of the one before is not the end of the pair."""
        with self._changed:
            self._num_expected += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_expected -= 1
                self._changed.notify_all()

    def adopt(self, connection: ssl.SSLSocket) -> None:
        """Read this connection, after the one of before has ended."""
        assert self._dialled is not None, "its address is known from start on"
        is_first = not self._dialled.cancelled()
        self._dialled.cancel()
        with self._changed:
            if self._is_closed:
                connection.close()
                return
            self._coming.append(connection)
        if is_first:
            self._threads.submit(self._read_all).add_done_callback(self._reading_ended)

    def _reading_ended(self, done: asyncio.Future[None]) -> None:
        self._broken(str(done.exception()))

    def _broken(self, why: str) -> None:
        if not self._is_closed:
            self._publish(RingBroken(pair=self._pair, why=f"the connection broke: {why}"))

    def _arrived(self, tag: bytes, header: FrameHeader) -> None:
        if (timer := self._timers.pop(tag, None)) is not None:
            timer.cancel()
        if not self._is_closed:
            self._publish(FrameArrived(pair=self._pair, leg=header.leg, seq=header.seq))

    # -- in the thread -------------------------------------------------------------------------------

    def _read_all(self) -> None:
        while self._take_next():
            connection = self._current
            assert connection is not None
            try:
                while self._read_frame(connection):
                    pass
            finally:
                with self._changed:
                    self._current = None
                connection.close()
        raise ConnectionError("the source ended it")

    def _take_next(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._coming or not self._num_expected or self._is_closed, self._timeout_s)
            if self._is_closed or not self._coming:
                return False
            self._current = self._coming.popleft()
            return True

    def _read_frame(self, connection: ssl.SSLSocket) -> bool:
        """Read one frame into its slot; ``False`` at the end of the connection."""
        head = bytearray(FRAME_HEAD.size)
        count = read_into(connection, memoryview(head))
        if not count:
            return False
        tag, num_bytes = FRAME_HEAD.unpack(head) if count == len(head) else (b"", 0)
        if not 0 < num_bytes <= self._slot_bytes:
            raise ConnectionError("the source sent no whole head of a frame")
        header = self._wait_announced(tag)
        if read_into(connection, self._place(header.slot, num_bytes)) < num_bytes:
            raise ConnectionError("the connection ended within a frame")
        self._loop.call_soon_threadsafe(self._arrived, tag, header)
        return True

    def _wait_announced(self, tag: bytes) -> FrameHeader:
        with self._changed:
            if not self._changed.wait_for(lambda: tag in self._announced or self._is_closed, self._timeout_s):
                raise ConnectionError("timed out: a payload came that was not announced")
            if self._is_closed:
                raise ConnectionError("the pair is closed")
            return self._announced.pop(tag)


class TlsRings:
    """Reached over TLS by workers of this platform."""

    def __init__(self, staging: StagingConfig, config: TlsTransportConfig, contexts: TlsContexts) -> None:
        self._config, self._tls = staging, config
        self._contexts = contexts
        self._accepting = Accepting("kv-tls", self._greet)
        self._rings: dict[bytes, _TlsRing] = {}
        """By the secret of the offer."""

    async def open_ring(self, pair: str) -> Ring:
        """Make the memory of a pair, as ``TransportEnds.open_ring``."""
        listener = self._accepting.listener
        if listener is None:
            listener = _listen(self._tls)
            self._accepting.begin(listener)
        host, port = self._tls.host, listener.getsockname()[1]
        secret = secrets.token_bytes(SECRET_BYTES)
        address = f"{host}:{port}/{secret.hex()}"
        ring = _TlsRing(pair, address, self._config, self._tls.timeout_s, lambda: self._forget(secret))
        self._rings[secret] = ring
        return ring

    def _forget(self, secret: bytes) -> None:
        self._rings.pop(secret, None)

    async def close(self) -> None:
        """End the listener."""
        await self._accepting.close()

    async def _greet(self, raw: socket.socket) -> None:
        """Find out which pair a connection belongs to, and hand it over."""
        connection: socket.socket = raw
        try:
            async with asyncio.timeout(self._tls.timeout_s):
                secured, secret = await accept(raw, self._contexts.server(), self._contexts.files.config.domain)
                connection = secured
                ring = self._rings.get(secret)
                if ring is None:
                    raise ConnectionError("it names no pair of this process")
                with ring.expecting():
                    await welcome(secured)
                    ring.adopt(secured)
        except (OSError, TimeoutError) as error:
            _log.warning("a connection for KV was refused: %s", error)
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise


def _listen(config: TlsTransportConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        raise Overloaded(f"cannot listen on {config.host} for KV transfers: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener
