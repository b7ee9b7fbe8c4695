"""S3, or a server that speaks it, as object store.

boto3 blocks, so each call runs in a thread of the store's own.  Those of the event loop encode prompts and resolve
names: a server that is there and does not answer would take all of them.
"""

from __future__ import annotations

import asyncio
import errno
import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError, IncompleteReadError

from stratos.common.errors import DependencyDown, NotFound, RequestTooLarge, StratosError
from stratos.store.object_store import MAX_FOLDER_FILES, ObjectInfo, ObjectStore, check_key, is_plain_key
from stratos.store.settings import ObjectStoreConfig

_CHUNK_BYTES = 1 << 20
NUM_CONNECTIONS = 32
"""Calls at a time, and connections that are kept, at most."""
MAX_PUT_BYTES = 5 * 1024**3
"""Amazon takes no more in one request; larger files go up in parts, which are one object once all of them are there."""
PART_BYTES = 64 * 1024**2
"""Of which one is in memory at a time; of a file of more than 10,000 parts they are larger."""
_NO_PARTS = frozenset({"501", "NotImplemented"})
_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_BEHIND_THE_END = frozenset({"416", "InvalidRange"})
P = ParamSpec("P")
T = TypeVar("T")


class S3Store(ObjectStore):
    """Objects of one bucket below one prefix.

    Args:
        bucket: its name.
        prefix: of all keys, empty or with a slash at its end.
        config: how the server is reached.
        num_attempts: tries of a request, the first included.
    """

    def __init__(self, bucket: str, prefix: str, config: ObjectStoreConfig, num_attempts: int) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._config = config
        self._num_attempts = num_attempts
        self._client: Any = None
        self._client_lock = asyncio.Lock()
        self._threads = ThreadPoolExecutor(NUM_CONNECTIONS, "s3")

    async def list_folder(self, folder: str) -> list[ObjectInfo]:
        """Objects below ``folder``."""
        return await self._call(self._list_folder, check_key(folder))

    async def list_all(self, folder: str) -> list[ObjectInfo]:
        """Every object below ``folder``, page by page."""
        return await self._call(self._list_all, check_key(folder))

    async def fetch(self, key: str, path: Path, max_bytes: int) -> int:
        """Download one object."""
        return await self._call(self._fetch, check_key(key), path, max_bytes)

    async def read(self, key: str, offset: int, num_bytes: int) -> bytes:
        """Download a part of one object."""
        return await self._call(self._read, check_key(key), offset, num_bytes)

    async def put(self, key: str, content: Path | bytes) -> None:
        """Upload one file, or bytes."""
        await self._call(self._put, check_key(key), content)

    async def delete(self, key: str) -> None:
        """Remove one object."""
        await self._call(self._delete, check_key(key))

    async def close(self) -> None:
        if self._client is not None:
            await self._in_thread(self._client.close)

    async def open(self) -> None:
        """Read boto3's data files, for a second or more of the interpreter's time; nothing is contacted."""
        async with self._client_lock:
            if self._client is None:
                self._client = await self._in_thread(self._open_client)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **kwargs))

    async def _call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await self.open()
        try:
            try:
                return await self._in_thread(work, *args, **kwargs)
            except ConnectionClosedError:
                # A server may end a kept connection just when it is used again: that is no attempt, and costs no time.
                return await self._in_thread(work, *args, **kwargs)
        except (BotoCoreError, ClientError, OSError) as error:
            raise self._explain(error, str(args[0])) from error

    def _open_client(self) -> Any:
        config = self._config
        session = boto3.session.Session()
        return session.client(
            "s3",
            endpoint_url=config.s3_endpoint_url or None,
            region_name=config.s3_region or session.region_name or ("us-east-1" if config.s3_endpoint_url else None),
            config=Config(
                connect_timeout=min(config.timeout_s, 0.8),
                read_timeout=config.timeout_s,
                max_pool_connections=NUM_CONNECTIONS,
                retries={"total_max_attempts": self._num_attempts, "mode": "standard"},
                s3={"addressing_style": "path" if config.s3_endpoint_url else "auto"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def _list_folder(self, folder: str) -> list[ObjectInfo]:
        objects = list(itertools.islice(self._objects(folder), MAX_FOLDER_FILES + 1))
        if not objects:
            raise NotFound(f"the object store has no folder {folder!r}")
        if len(objects) > MAX_FOLDER_FILES:
            raise RequestTooLarge(f"the object store folder {folder!r} has more than {MAX_FOLDER_FILES} files")
        return _by_key(objects)

    def _list_all(self, folder: str) -> list[ObjectInfo]:
        return _by_key(self._objects(folder))

    def _objects(self, folder: str) -> Iterator[ObjectInfo]:
        """Objects below a folder, page by page: one may have nothing but hidden ones, such as those of ``.git``."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}{folder}/"
        )
        for o in (entry for page in pages for entry in page.get("Contents", ())):
            info = ObjectInfo(o["Key"][len(self._prefix) :], o["Size"], o["LastModified"].timestamp())
            if is_plain_key(info.key):
                yield info

    def _fetch(self, key: str, path: Path, max_bytes: int) -> int:
        answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
        num_bytes = 0
        with closing(answer["Body"]) as body, path.open("wb") as file:
            for chunk in body.iter_chunks(_CHUNK_BYTES):
                num_bytes += len(chunk)
                if num_bytes > max_bytes:
                    raise RequestTooLarge(f"the object {key!r} is larger than {max_bytes} bytes")
                file.write(chunk)
        return num_bytes

    def _read(self, key: str, offset: int, num_bytes: int) -> bytes:
        where = f"bytes={offset}-{offset + num_bytes - 1}"
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, Range=where)
        except ClientError as error:
            if _code(error) not in _BEHIND_THE_END:
                raise
            return b""
        # A server that knows no ranges answers with the whole, from its first byte on.
        num_before = 0 if "ContentRange" in answer else offset
        with closing(answer["Body"]) as body:
            left = num_before
            while left and (part := body.read(min(left, _CHUNK_BYTES))):
                left -= len(part)
            data: bytes = body.read(num_bytes)
        # The client says nothing of a connection that ended in the middle of what is read at once.
        if len(data) < (least := min(num_bytes, answer.get("ContentLength", 0) - num_before)):
            raise IncompleteReadError(actual_bytes=len(data), expected_bytes=least)
        return data

    def _put(self, key: str, content: Path | bytes) -> None:
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
            num_bytes = file.seek(0, io.SEEK_END)
            file.seek(0)
            if num_bytes <= MAX_PUT_BYTES or not self._put_parts(key, file):
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=file)

    def _put_parts(self, key: str, file: BinaryIO) -> bool:
        """Upload in parts; ``False``, and nothing is sent, where the server knows none, as that of an evaluation."""
        parts = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, use_threads=False)
        try:
            self._client.upload_fileobj(file, self._bucket, self._prefix + key, Config=parts)
        except ClientError as error:
            if _code(error) not in _NO_PARTS:
                raise
            file.seek(0)
            return False
        return True

    def _delete(self, key: str) -> None:
        try:
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)
        except ClientError as error:  # Amazon says nothing of an object that is not there; Google does
            if _code(error) not in _MISSING:
                raise

    def _explain(self, error: BotoCoreError | ClientError | OSError, key: str) -> StratosError:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return DependencyDown(f"no disk space is left for {key!r}: free some, or point the cache to another disk")
        code = _code(error) if isinstance(error, ClientError) else ""
        if code in _MISSING:
            return NotFound(f"the object store has no object {key!r}")
        where = f"S3 bucket {self._bucket!r}"
        if code == "NoSuchBucket":
            return DependencyDown(f"the {where} does not exist; correct object_store_url")
        return DependencyDown(f"the {where} does not serve {key!r}: {code or error}")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _by_key(objects: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    return sorted(objects, key=lambda info: info.key)
