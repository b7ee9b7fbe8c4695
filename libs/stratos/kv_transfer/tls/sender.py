"""The sending end: a connection and a writing thread per pair.

The thread dials again between two frames when this process has a new certificate, and after ``rekey_bytes``: AES-GCM
allows a bounded number of records under one key (RFC 8446, 5.5), and a pair may live for weeks.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading

from stratos.common.errors import WorkerLost
from stratos.common.tls.contexts import TlsContexts
from stratos.core.device.payload import Payload
from stratos.kv_transfer.blocking import BlockingThreads
from stratos.kv_transfer.fitting import checked_payload
from stratos.kv_transfer.settings import TlsTransportConfig
from stratos.kv_transfer.tls.wire import FRAME_HEAD, SECRET_BYTES, dial, has_ended, tag_of, wake
from stratos.kv_transfer.transfer import FrameHeader, PairSender, TransportOffer

_log = logging.getLogger(__name__)


class _Line:
    """The connection of a pair; used by one thread, but for ``end``."""

    def __init__(self, address: str, config: TlsTransportConfig, contexts: TlsContexts) -> None:
        self._host, self._port, self._secret = _parse(address)
        self._config = config
        self._contexts = contexts
        self._lock = threading.Lock()
        self._is_ended = False
        self._num_bytes = 0
        self._context: ssl.SSLContext
        self._connection: ssl.SSLSocket | None = None

    def open(self) -> None:
        """Dial; blocks. Raises ``OSError``."""
        context = self._contexts.client()
        domain, timeout_s = self._contexts.files.config.domain, self._config.timeout_s
        made = dial(self._host, self._port, self._secret, context, domain, timeout_s)
        with self._lock:
            before, self._connection = self._connection, made
            if self._is_ended:
                wake(made)
        self._context, self._num_bytes = context, 0
        if before is not None:
            before.close()

    def write(self, header: FrameHeader, payload: memoryview) -> None:
        """Send one frame; blocks. Raises ``OSError``."""
        if self._num_bytes >= self._config.rekey_bytes:
            self.open()
        elif self._contexts.client() is not self._context:
            self._take_new_certificate()
        connection = self._connection
        assert connection is not None
        if has_ended(connection):
            raise ConnectionError("the receiver ended the connection")
        connection.sendall(FRAME_HEAD.pack(tag_of(header), payload.nbytes))
        connection.sendall(payload)
        self._num_bytes += payload.nbytes

    def _take_new_certificate(self) -> None:
        try:
            self.open()
        except OSError as error:
            # The peer may not know its CA yet. The connection that is open is as good as before.
            _log.warning("KV goes on under the certificate of before: %s", error)
            self._context = self._contexts.client()

    def end(self) -> None:
        """Wake the thread; from any thread."""
        with self._lock:
            self._is_ended = True
            if self._connection is not None:
                wake(self._connection)

    def close(self) -> None:
        """Free the connection; the thread has ended."""
        if self._connection is not None:
            self._connection.close()


class _TlsPair(PairSender):
    def __init__(self, offer: TransportOffer, line: _Line, threads: BlockingThreads) -> None:
        self.offer = offer
        self._line = line
        self._threads = threads
        self._is_closed = False

    async def send(self, header: FrameHeader, payload: Payload | bytes | bytearray) -> None:
        data = checked_payload(self.offer, header, payload)
        if self._is_closed:
            raise WorkerLost(f"the KV transfer pair {self.offer.pair} has ended")
        try:
            await self._threads.submit(self._line.write, header, data)
        except OSError as error:
            await self.close()
            raise WorkerLost(f"the KV transfer pair {self.offer.pair} broke: {error}") from error

    async def close(self) -> None:
        self._is_closed = True
        self._line.end()
        await asyncio.shield(self._threads.close())
        self._line.close()


async def connect_tls(offer: TransportOffer, config: TlsTransportConfig, contexts: TlsContexts) -> PairSender:
    """Connect a pair, as ``TransportEnds.connect``."""
    line = _Line(offer.address, config, contexts)
    threads = BlockingThreads(f"kv-tls to {offer.pair}", 1)
    try:
        await threads.submit(line.open)
    except Exception as error:
        await asyncio.shield(threads.close())
        if isinstance(error, OSError):
            raise WorkerLost(f"cannot connect the KV transfer pair {offer.pair}: {error}") from error
        raise  # ValueError: a host that is no name
    return _TlsPair(offer, line, threads)


def _parse(address: str) -> tuple[str, int, bytes]:
    """Host, port and secret of an offer's ``host:port/secret``. Raises ``ValueError``."""
    place, _, text = address.rpartition("/")
    host, _, port = place.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port[:6]) <= 65535
    if not host or not is_port or len(text) != 2 * SECRET_BYTES:
        raise ValueError(f"{place!r} is not host:port, with a secret after it")
    return host, int(port), bytes.fromhex(text)
