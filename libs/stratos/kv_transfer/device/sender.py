"""The sending end: maps the receiver's ring, and copies payloads into its slots from device or host memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

from stratos.common.errors import Internal, WorkerLost
from stratos.core.device.payload import Payload
from stratos.kv_transfer.blocking import BlockingThreads
from stratos.kv_transfer.device.lease import DeviceGrant, borrow, is_lent, parse_address
from stratos.kv_transfer.device.memory import AttachedMemory, DeviceMemory, NoDeviceRoomError
from stratos.kv_transfer.fitting import fitting_payload
from stratos.kv_transfer.private_directory import private_directory
from stratos.kv_transfer.transfer import FrameHeader, PairSender, TransportOffer


class _DevicePair(PairSender):
    def __init__(
        self, offer: TransportOffer, memory: AttachedMemory, lease: socket.socket, threads: BlockingThreads
    ) -> None:
        self.offer = offer
        self._memory, self._lease, self._threads = memory, lease, threads
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[None] | None = None
        self._loop.add_reader(lease.fileno(), self._end)  # only the end of the receiver is readable here

    async def send(self, header: FrameHeader, payload: Payload | bytes | bytearray) -> None:
        data = fitting_payload(self.offer, header, payload)
        if self._ending is not None:
            raise self._lost()
        # Frames leave in turn, in one thread: none is under way any more when the memory is unmapped.
        try:
            await asyncio.shield(self._threads.submit(self._memory.write, header.slot * self.offer.slot_bytes, data))
        except RuntimeError as error:
            await self.close()
            raise WorkerLost(f"the KV transfer pair {self.offer.pair} broke: {error}") from error
        if self._ending is not None:
            raise self._lost()

    async def close(self) -> None:
        self._end()
        assert self._ending is not None
        await asyncio.shield(self._ending)

    def _end(self) -> None:
        if self._ending is not None:
            return
        self._loop.remove_reader(self._lease.fileno())
        self._threads.submit(self._return)
        self._ending = self._threads.close()

    def _return(self) -> None:
        """In the thread, after all copies."""
        try:
            with contextlib.suppress(RuntimeError):  # a driver that cannot unmap it does so with the process
                self._memory.detach()
        finally:
            self._lease.close()

    def _lost(self) -> WorkerLost:
        return WorkerLost(f"the KV transfer pair {self.offer.pair} has ended")


class DeviceAttacher:
    """Maps memory that processes which share ``directory`` have exported."""

    def __init__(self, directory: Path, timeout_s: float, memory: DeviceMemory) -> None:
        self._directory, self._timeout_s, self._device = private_directory(directory), timeout_s, memory

    async def connect(self, offer: TransportOffer) -> PairSender:
        """Map the memory of a pair, as ``TransportEnds.connect``."""
        name, secret = parse_address(offer.address)
        threads = BlockingThreads(f"kv-ipc to {offer.pair}", 1)
        try:
            lease, memory = await threads.submit(self._map, self._directory / name, secret, offer)
        except BaseException as error:
            await asyncio.shield(threads.close())
            if isinstance(error, OSError | RuntimeError):
                raise WorkerLost(f"the KV transfer pair {offer.pair} is gone, or unreachable: {error}") from error
            raise
        return _DevicePair(offer, memory, lease, threads)

    def _map(self, path: Path, secret: bytes, offer: TransportOffer) -> tuple[socket.socket, AttachedMemory]:
        lease, grant = borrow(path, secret, self._timeout_s)
        try:
            return lease, self._map_granted(_checked(grant, offer), lease)
        except BaseException:
            lease.close()
            raise

    def _map_granted(self, grant: DeviceGrant, lease: socket.socket) -> AttachedMemory:
        try:
            return self._device.attach(grant.handle, grant.num_bytes)
        except NoDeviceRoomError:
            raise
        except RuntimeError as error:
            if is_lent(lease):  # else the memory may have been freed under the call
                raise Internal(f"this device maps no memory of {grant.device}: {error}") from error
            raise


def _checked(grant: DeviceGrant, offer: TransportOffer) -> DeviceGrant:
    if grant.num_bytes != offer.slot_bytes * offer.num_slots:
        raise ValueError(f"the ring of {offer.pair} has {grant.num_bytes} bytes, not what its offer says")
    return grant
