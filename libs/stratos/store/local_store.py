"""A local directory as object store."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from stratos.common.errors import BadRequest, DependencyDown, NotFound, RequestTooLarge
from stratos.store.object_store import MAX_FOLDER_FILES, ObjectInfo, ObjectStore, check_key, is_plain_key

_CHUNK_BYTES = 1 << 20


class LocalStore(ObjectStore):
    """Objects are files below ``root``; links that lead out of it are refused."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def list_folder(self, folder: str) -> list[ObjectInfo]:
        """Files below ``folder``."""
        return await asyncio.to_thread(self._list_folder, check_key(folder))

    async def fetch(self, key: str, path: Path, max_bytes: int) -> int:
        """Copy one file."""
        return await asyncio.to_thread(self._fetch, check_key(key), path, max_bytes)

    async def read(self, key: str, offset: int, num_bytes: int) -> bytes:
        """Read a part of one file."""
        return await asyncio.to_thread(self._read, check_key(key), offset, num_bytes)

    async def put(self, key: str, content: Path | bytes) -> None:
        """Copy a file, or bytes, into the store; a reader sees all of it or none."""
        await asyncio.to_thread(self._put, check_key(key), content)

    async def delete(self, key: str) -> None:
        """Remove one file; its folder stays."""
        await asyncio.to_thread(self._delete, check_key(key))

    def _inside(self, key: str) -> Path:
        if not self._root.is_dir():
            raise DependencyDown(f"the object store folder {self._root} does not exist")
        path = self._root / key
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self._root)):
            raise BadRequest(f"{key!r} leads out of the object store through a link", param="uri")
        return path

    async def list_all(self, folder: str) -> list[ObjectInfo]:
        """Every file below ``folder``."""
        return await asyncio.to_thread(self.list_some, folder, sys.maxsize)

    def list_some(self, folder: str, enough: int = MAX_FOLDER_FILES) -> list[ObjectInfo]:
        """Files below ``folder``, sorted by key; where there are very many, more than ``enough`` of them."""
        path = self._inside(check_key(folder))
        found: list[ObjectInfo] = []
        try:
            for parent, _, names in os.walk(path):
                keys = [(Path(parent) / name).relative_to(self._root).as_posix() for name in names]
                for key in filter(is_plain_key, keys):
                    with suppress(FileNotFoundError):  # it was removed since its folder was read
                        state = self._inside(key).stat()
                        found.append(ObjectInfo(key, state.st_size, state.st_mtime))
                if len(found) > enough:
                    break
        except OSError as error:
            raise _explain(error, folder) from error
        return sorted(found, key=lambda info: info.key)

    def open_object(self, key: str) -> BinaryIO:
        """An object for reading.

        Raises:
            NotFound: no such object.
        """
        try:
            return self._file(check_key(key)).open("rb")
        except OSError as error:
            raise _explain(error, key) from error

    def _list_folder(self, folder: str) -> list[ObjectInfo]:
        found = self.list_some(folder)
        if len(found) > MAX_FOLDER_FILES:
            raise RequestTooLarge(f"the object store folder {folder!r} has more than {MAX_FOLDER_FILES} files")
        if not found:
            raise NotFound(f"the object store has no folder {folder!r}")
        return found

    def _fetch(self, key: str, path: Path, max_bytes: int) -> int:
        try:
            return _copy(self._file(key), path, max_bytes, key)
        except OSError as error:
            raise _explain(error, key) from error

    def _read(self, key: str, offset: int, num_bytes: int) -> bytes:
        try:
            with self._file(key).open("rb") as file:
                file.seek(offset)
                return file.read(num_bytes)
        except OSError as error:
            raise _explain(error, key) from error

    def _file(self, key: str) -> Path:
        path = self._inside(key)
        if not path.is_file():
            raise NotFound(f"the object store has no object {key!r}")
        return path

    def _delete(self, key: str) -> None:
        try:
            self._inside(key).unlink(missing_ok=True)
        except OSError as error:
            raise _explain(error, key) from error

    def _put(self, key: str, content: Path | bytes) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        target = self._inside(key)
        # Two may put one object at a time, and processes of two containers have the same number.
        part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                part.write_bytes(content)
            else:
                _copy(content, part, content.stat().st_size, key)
            _sync(part)
            part.replace(target)
            _sync(target.parent)
        except OSError as error:
            raise _explain(error, key) from error
        finally:
            with suppress(OSError):  # where its folder cannot be made, there is no part of it either
                part.unlink(missing_ok=True)


def _copy(source: Path, path: Path, max_bytes: int, key: str) -> int:
    num_bytes = 0
    with source.open("rb") as reader, path.open("wb") as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise RequestTooLarge(f"the object {key!r} is larger than {max_bytes} bytes")
            writer.write(chunk)
    return num_bytes


def _sync(path: Path) -> None:
    """Let a file, or the names in a folder, outlive the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explain(error: OSError, key: str) -> DependencyDown:
    if error.errno == errno.ENOSPC:
        return DependencyDown(f"no disk space is left for {key!r}: free some, or point the cache to another disk")
    return DependencyDown(f"the object store cannot serve {key!r}: {error.strerror or error}")
