"""The receiving end: exports one ring per pair, and gives it back when no other process can write it any more.

As in shared memory a payload is in its slot when ``Sent`` comes; it is read there, by a kernel that adds up
the checksum of what it writes.  The pair breaks when its sender's process ends.  Memory of a pair that has ended
lingers until its sender has unmapped it; with as many rings as the plan of the device's memory has (``rings``), no
other one is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

from stratos.common.errors import Internal, Overloaded
from stratos.core.device.payload import DevicePayload
from stratos.kv_transfer.accepting import Accepting
from stratos.kv_transfer.device.lease import (
    HELLO_BYTES,
    SECRET_BYTES,
    DeviceGrant,
    check_user,
    decode_hello,
    encode_grant,
    listen_at,
    remove_leftovers,
)
from stratos.kv_transfer.device.memory import DeviceMemory, ExportedMemory, NoDeviceRoomError
from stratos.kv_transfer.device.rings import most_rings
from stratos.kv_transfer.private_directory import private_directory
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.transfer import PortListener, Ring, RingBroken

CUDA_IPC = "cuda_ipc"
CLOSE_TIMEOUT_S = 2.0
"""At the end of the process: memory that a stopped sender still maps then goes with the process."""
SLOT_ALIGNMENT = 16
"""Bytes that the kernel which unpacks a slot reads at once: slots begin at multiples."""
_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})
"""Errors of a socket that pass with time."""
_log = logging.getLogger(__name__)


class _DeviceRing(Ring):
    def __init__(
        self, pair: str, memory: ExportedMemory, slot_bytes: int, address: str, forget: Callable[[_DeviceRing], None]
    ) -> None:
        self.address, self._pair, self._forget = address, pair, forget
        self._slot_bytes = slot_bytes
        self._memory: ExportedMemory | None = memory
        self._lease: socket.socket | None = None
        self._loop = asyncio.get_running_loop()
        self.returned: asyncio.Future[None] = self._loop.create_future()
        """No other process maps the memory, and none will."""
        self._is_closed = False

    def start(self, publish: PortListener) -> None:
        self._publish = publish

    def payload(self, slot: int, num_bytes: int) -> DevicePayload:
        assert self._memory is not None, "the pair has ended"
        return self._memory.span(slot * self._slot_bytes, num_bytes)

    def lend(self, lease: socket.socket, grant: Callable[[ExportedMemory], DeviceGrant]) -> None:
        """Give the handle to a sender, the first one only."""
        if self._is_closed or self._lease is not None or self._memory is None:
            raise ConnectionError("the pair has ended, or has a sender already")
        lease.send(encode_grant(grant(self._memory)))  # less than any socket's buffer
        self._lease = lease
        self._loop.add_reader(lease.fileno(), self._lease_ended)

    def close(self) -> None:
        self._forget(self)
        self._is_closed = True
        if self._lease is None:
            self._give_back()
        else:
            with contextlib.suppress(OSError):  # the sender has closed it at the same time
                self._lease.shutdown(socket.SHUT_WR)

    def _lease_ended(self) -> None:
        assert self._lease is not None
        try:
            if self._lease.recv(1):
                return  # a sender writes nothing here; it is no end
        except BlockingIOError:
            return  # woken without a reason: the sender may still map the memory
        except ConnectionError:
            pass  # it died
        self._loop.remove_reader(self._lease.fileno())
        self._lease.close()
        self._lease = None
        was_closed, self._is_closed = self._is_closed, True
        self._give_back()
        if not was_closed:
            why = "the connection broke: the source's process has ended, or closed the pair"
            self._publish(RingBroken(pair=self._pair, why=why))

    def _give_back(self) -> None:
        self._memory = None  # spans that are read keep it
        if not self.returned.done():
            self.returned.set_result(None)


class DeviceRings:
    """Memory of ``memory``'s device, for processes that share ``directory``."""

    def __init__(self, config: StagingConfig, directory: Path, timeout_s: float, memory: DeviceMemory) -> None:
        check_slots(config)
        self._config = config
        self._directory, self._timeout_s, self._device = private_directory(directory), timeout_s, memory
        self._path = self._directory / f"kv-{secrets.token_hex(8)}.sock"
        self._accepting = Accepting("kv-ipc", self._greet)
        self._rings: dict[bytes, _DeviceRing] = {}
        """By the secret of the offer; of open pairs."""
        self._memories: weakref.WeakSet[ExportedMemory] = weakref.WeakSet()
        """Memory of open pairs, and of ended ones that is still mapped or read."""
        self._num_exporting = 0
        self._lingering: set[asyncio.Future[None]] = set()

    @property
    def num_lingering(self) -> int:
        """Rings of ended pairs that a sender may still map."""
        return len(self._lingering)

    async def open_ring(self, pair: str) -> Ring:
        """Export the memory of a pair, as ``TransportEnds.open_ring``."""
        if len(self._memories) + self._num_exporting >= most_rings(self._config.max_pairs):
            raise Overloaded("senders that do not end hold too much memory of ended KV transfer pairs")
        self._listen()
        size = self._config.slot_bytes * self._config.slots_per_pair
        self._num_exporting += 1  # a caller that gave up has ended nothing: the next one may come beside it
        try:
            memory = await asyncio.to_thread(self._device.export, size)
        except NoDeviceRoomError as error:
            raise Overloaded(f"no room for {size / 2**20:.1f} MiB of KV staging on the device: {error}") from error
        except RuntimeError as error:
            raise Internal(f"the device exports no memory: {error}") from error
        finally:
            self._num_exporting -= 1
        self._memories.add(memory)
        secret = secrets.token_bytes(SECRET_BYTES)
        address = f"{self._path.name}/{secret.hex()}"
        ring = self._rings[secret] = _DeviceRing(pair, memory, self._config.slot_bytes, address, self._forget)
        return ring

    def _forget(self, ring: _DeviceRing) -> None:
        self._rings = {secret: known for secret, known in self._rings.items() if known is not ring}
        if not ring.returned.done():
            self._lingering.add(ring.returned)
            ring.returned.add_done_callback(self._lingering.discard)

    async def close(self) -> None:
        """End the listener, and wait for senders to unmap what has ended."""
        await self._accepting.close()
        if self._accepting.listener is not None:
            self._path.unlink(missing_ok=True)
        if self._lingering:
            await asyncio.wait(set(self._lingering), timeout=CLOSE_TIMEOUT_S)

    def _listen(self) -> None:
        if self._accepting.listener is not None:
            return
        try:
            remove_leftovers(self._directory)
            listener = listen_at(self._path)
        except OSError as error:
            what = f"cannot listen on {self._path} for KV transfers: {error}"
            raise (Overloaded if error.errno in _TRANSIENT else Internal)(what) from error
        self._accepting.begin(listener)

    async def _greet(self, lease: socket.socket) -> None:
        """Find out which pair a connection belongs to, and lend it that pair's memory."""
        try:
            lease.setblocking(False)
            check_user(lease)
            async with asyncio.timeout(self._timeout_s):
                secret = decode_hello(await _read(lease, HELLO_BYTES))
            ring = self._rings.get(secret)
            if ring is None:
                raise ConnectionError("it names no pair of this process")
            ring.lend(lease, self._grant)
        except (OSError, TimeoutError) as error:
            _log.info("a connection for KV was refused: %s", error)
            lease.close()
        except asyncio.CancelledError:
            lease.close()
            raise

    def _grant(self, memory: ExportedMemory) -> DeviceGrant:
        size = self._config.slot_bytes * self._config.slots_per_pair
        return DeviceGrant(size, self._device.device, memory.handle)


def check_slots(config: StagingConfig) -> None:
    """Raise ``ValueError`` unless slots of a ring are aligned as kernels read them."""
    if config.slot_bytes % SLOT_ALIGNMENT:
        raise ValueError(f"staging.slot_bytes must be a multiple of {SLOT_ALIGNMENT} for {CUDA_IPC}")


async def _read(connection: socket.socket, num_bytes: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < num_bytes and (more := await loop.sock_recv(connection, num_bytes - len(data))):
        data += more
    return data
