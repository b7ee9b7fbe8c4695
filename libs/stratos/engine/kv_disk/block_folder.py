"""Files of KV blocks: one per block, in a folder per tenant, in a folder per layout.

    <directory>/.lock                                    held by the process that the folder belongs to
    <directory>/<layout digest>/<tenant's folder>/<block hash>.kv

A file is written under another name, synchronised and renamed, so that a name always has a whole file, or after a loss
of power a broken one, which its seal gives away.  The page cache is told to let go of what was read or written: KV on
disk must not push out what the machine reads more often.  Removals are synchronised where a caller waits for them.
Knows no keys and counts nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from stratos.common.errors import InvalidCheckpoint

_log = logging.getLogger(__name__)
SUFFIX, UNFINISHED = ".kv", ".new"
_LOCK = ".lock"
_NAME_CHARS = 64
_LAYOUT = re.compile(r"[0-9a-f]{64}\Z")
"""Names of folders of layouts: all else in the directory is another's, and stays."""


def tenant_folder(tenant: str) -> str:
    """Name of a tenant's folder; it is found again without the tenant's key."""
    return hashlib.sha256(b"kv on disk of " + tenant.encode()).hexdigest()[:32]


class BlockFolder:
    """Files of one layout.

    Args:
        directory: of this process alone.
        layout: digest of the layout.
        file_bytes: size of every file.

    Raises:
        InvalidCheckpoint: the directory cannot be used, or another process uses it.
    """

    def __init__(self, directory: Path, layout: bytes, file_bytes: int) -> None:
        self.path = directory / layout.hex()
        self._directory, self._file_bytes = directory, file_bytes
        self._changed: set[Path] = set()
        """Folders in which something was removed since they were synchronised."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidCheckpoint(f"the disk tier cannot use {directory}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_fd)
            raise InvalidCheckpoint(
                f"{directory} is the disk tier of another process; give each worker a directory of its own"
            ) from None

    def close(self) -> None:
        """Let another process have the directory."""
        os.close(self._lock_fd)

    def scan(self) -> list[tuple[bytes, str]]:
        """Hash and tenant's folder of every block, least recently used first; what is no whole file is removed."""
        found: list[tuple[int, bytes, str]] = []
        with contextlib.suppress(OSError):
            for folder in os.scandir(self.path):
                with contextlib.suppress(OSError):
                    found += self._scan_tenant(folder.name)
        found.sort()
        return [(block_hash, folder) for _, block_hash, folder in found]

    def _scan_tenant(self, folder: str) -> Iterator[tuple[int, bytes, str]]:
        for entry in os.scandir(self.path / folder):
            name = entry.name.removesuffix(SUFFIX)
            with contextlib.suppress(OSError, ValueError):
                about = entry.stat()
                block_hash = bytes.fromhex(name) if len(name) == _NAME_CHARS and name != entry.name else b""
                if block_hash and about.st_size == self._file_bytes:
                    yield about.st_mtime_ns, block_hash, folder
                    continue
            with contextlib.suppress(OSError):
                Path(entry.path).unlink()

    def remove_other_layouts(self) -> bool:
        """Remove blocks of which this process cannot use a byte; whether there is more to do."""
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._directory):
                if entry.name != self.path.name and _LAYOUT.match(entry.name):
                    shutil.rmtree(entry.path, ignore_errors=True)
        return False

    def write(self, block_hash: bytes, folder: str, data: bytes) -> None:
        """Make the file of a block. Raises ``OSError``, and leaves nothing behind then."""
        path = self._path(block_hash, folder)
        unfinished = path.with_suffix(UNFINISHED)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fdatasync(fd)  # only clean pages leave the page cache
                _leave_page_cache(fd)
            finally:
                os.close(fd)
            unfinished.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise

    def read(self, block_hash: bytes, folder: str) -> bytes:
        """The file of a block. Raises ``OSError``: it is not there, or cannot be read."""
        fd = os.open(self._path(block_hash, folder), os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(fd, self._file_bytes + 1):
                parts.append(part)
            _leave_page_cache(fd)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(fd)

    def touch(self, hashes: Iterable[bytes], folder: str) -> None:
        """Blocks were used, the last of these last: a restart finds out by it what was."""
        for number, block_hash in enumerate(hashes):
            path = self._path(block_hash, folder)
            with contextlib.suppress(OSError):
                os.utime(path)
                used_ns = path.stat().st_mtime_ns + number  # the system's time stands still for milliseconds
                os.utime(path, ns=(used_ns, used_ns))

    def remove(self, block_hash: bytes, folder: str) -> None:
        """Remove the file of a block, if it is there."""
        path = self._path(block_hash, folder)
        self._changed.add(path.parent)
        try:
            path.unlink()
        except OSError as error:
            _say_what_stays(path, error)

    def remove_tenant(self, folder: str) -> None:
        """Remove all files of a tenant."""
        self._changed.add(self.path)
        shutil.rmtree(self.path / folder, onerror=lambda _, path, info: _say_what_stays(path, info[1]))

    def keep_removed(self) -> None:
        """Synchronise the folders in which something was removed: a loss of power brings none of it back."""
        changed, self._changed = self._changed, set()
        for path in sorted(changed):
            with contextlib.suppress(OSError):  # it was removed itself
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

    def _path(self, block_hash: bytes, folder: str) -> Path:
        return self.path / folder / (block_hash.hex() + SUFFIX)


def _say_what_stays(path: Path | str, error: BaseException) -> None:
    if not isinstance(error, FileNotFoundError):
        _log.error("KV that is to go cannot be removed, and a restart finds it: %s: %s", path, error)


def _leave_page_cache(fd: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
