"""Transport over shared memory, the default between processes of one machine.

The receiver makes one file per pair in a private directory (best under /dev/shm), allocates all of it, so that a full
file system is an error here and not a SIGBUS later, and maps it.  The sender maps it too and unlinks it: from then on
the memory lives as long as a process maps it, and no file is left however the processes end.

A receiver holds a file lock on its files.  At its start it removes files in the directory that are not locked:
those of processes that died before a sender attached.  A lock, unlike a process id, also works when several
containers share the directory.

Not for peers of another user: a process that can write the directory can write the payloads.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import mmap
import os
import re
import secrets
import stat
from pathlib import Path

import numpy as np

from stratos.common.errors import Overloaded, WorkerLost
from stratos.core.device.payload import Payload
from stratos.kv_transfer.fitting import checked_payload
from stratos.kv_transfer.private_directory import private_directory
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.transfer import FrameHeader, PairSender, Ring, TransportEnds, TransportOffer

_NAME = re.compile(r"kv-[0-9a-f]{32}\.ring")
_COPY_BYTES = 1024 * 1024
"""Copied at once; the event loop runs other tasks in between."""


class _ShmRing(Ring):
    def __init__(self, directory: Path, slot_bytes: int, num_slots: int) -> None:
        self._slot_bytes = slot_bytes
        self._fd, self._path = _create(directory, slot_bytes * num_slots)
        self.address = self._path.name
        try:
            self._memory = memoryview(mmap.mmap(self._fd, slot_bytes * num_slots)).toreadonly()
        except OSError as err:
            self.close()
            raise _no_ring(directory, slot_bytes * num_slots, err) from err

    def payload(self, slot: int, num_bytes: int) -> memoryview:
        return self._memory[slot * self._slot_bytes :][:num_bytes]

    def close(self) -> None:
        # The mapping ends with the last view: a reader may still hold one.
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


class _ShmPair(PairSender):
    def __init__(self, offer: TransportOffer, memory: memoryview) -> None:
        self.offer = offer
        self._memory: np.ndarray | None = np.frombuffer(memory, dtype=np.uint8)

    async def send(self, header: FrameHeader, payload: Payload | bytes | bytearray) -> None:
        # Copied by numpy, which gives the interpreter lock away: the steps of an engine may need it.
        data = np.frombuffer(checked_payload(self.offer, header, payload), dtype=np.uint8)
        base = header.slot * self.offer.slot_bytes
        for begin in range(0, data.nbytes, _COPY_BYTES):
            if begin:
                await asyncio.sleep(0)
            if self._memory is None:
                raise WorkerLost(f"the KV transfer pair {self.offer.pair} is closed")
            part = data[begin : begin + _COPY_BYTES]
            np.copyto(self._memory[base + begin : base + begin + part.nbytes], part)

    async def close(self) -> None:
        self._memory = None


def shm_ends(config: StagingConfig, directory: Path) -> TransportEnds:
    """Ends over files in ``directory``, which both must be able to reach."""
    private = private_directory(directory)
    remove_leftovers(private)

    async def open_ring(pair: str) -> Ring:
        return _ShmRing(private, config.slot_bytes, config.slots_per_pair)

    async def connect(offer: TransportOffer) -> PairSender:
        # The address comes from a peer: a bare name of the known form cannot lead out of the directory.
        if not _NAME.fullmatch(offer.address):
            raise ValueError(f"{offer.address!r} is not the name of a staging file")
        return _ShmPair(offer, _attach(private / offer.address, offer))

    return TransportEnds(open_ring=open_ring, connect=connect)


def remove_leftovers(directory: Path) -> int:
    """Unlink staging files whose receiver is gone; returns how many."""
    removed = 0
    for path in directory.iterdir():
        if _NAME.fullmatch(path.name) and _is_unlocked(path):
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _is_unlocked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _create(directory: Path, size: int) -> tuple[int, Path]:
    """A new file of ``size``, locked; and its path."""
    try:
        while True:
            path = directory / f"kv-{secrets.token_hex(16)}.ring"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            if _lock_and_fill(fd, path, size):
                return fd, path
    except OSError as err:
        raise _no_ring(directory, size, err) from err


def _lock_and_fill(fd: int, path: Path, size: int) -> bool:
    """Returns ``False`` when another receiver's clean-up came between creation and lock; nothing is left then."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            os.posix_fallocate(fd, 0, size)
            return True
    except OSError:
        path.unlink(missing_ok=True)
        os.close(fd)
        raise
    os.close(fd)
    return False


def _no_ring(directory: Path, size: int, err: OSError) -> Overloaded:
    if err.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM):
        return Overloaded(f"cannot make a staging file in {directory}: {err.strerror}")
    free = os.statvfs(directory)
    return Overloaded(
        f"no room for {size / 2**20:.1f} MiB of KV staging in {directory} "
        f"({free.f_bavail * free.f_frsize / 2**20:.1f} MiB free there): {err.strerror}; "
        "enlarge that file system or the memory limit, or lower slot_bytes or slots_per_pair"
    )


def _attach(path: Path, offer: TransportOffer) -> memoryview:
    size = offer.slot_bytes * offer.num_slots
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise WorkerLost(f"{path} is gone: the KV transfer pair {offer.pair} has ended, or was attached to") from None
    except OSError as err:
        raise WorkerLost(f"cannot attach to {path}: {err.strerror}") from err
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ValueError(f"{path} is not a private file of this user")
        if found.st_size != size:
            raise ValueError(f"{path} has {found.st_size} bytes, its offer says {size}")
        memory = memoryview(mmap.mmap(fd, size))
    except OSError as err:
        raise WorkerLost(f"cannot map {path}: {err.strerror}") from err
    finally:
        os.close(fd)
    path.unlink(missing_ok=True)
    return memory
