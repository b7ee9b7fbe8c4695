"""POST and GET /v1/files, GET and DELETE /v1/files/{id}, GET /v1/files/{id}/content."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from stratos.common.errors import BadRequest, BodyTimeout, DependencyDown, InsufficientQuota, NotFound
from stratos.core.tenant import Tenant
from stratos.store.sealed.file_store import FileStore, StoredFile, new_file_id
from stratos_gateway.access.call_rate import LIST_CALLS
from stratos_gateway.answering.edge import Edge
from stratos_gateway.files.lines import LineCheck
from stratos_gateway.files.settings import FilesConfig
from stratos_gateway.files.upload import PURPOSE, Upload
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.http.errors import error_body
from stratos_gateway.replays.once import REPLAYED, KeptAnswers
from stratos_gateway.streams.asking import NO_STREAM, STREAM_HEADER, idempotency_key

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_MAX_LIMIT = 10_000
_LIST_FIELDS = ("limit", "after", "order", "purpose")
PURPOSES = (PURPOSE, "batch_output")


class FileRoutes:
    """The routes; another tenant's file is as unknown as one that never was.

    Args:
        edge: keys and places of bodies.
        store: of files; ``None`` keeps none.
        config: their bounds.
        kept: answers to uploads with a key; ``None`` keeps none.
    """

    def __init__(
        self, edge: Edge, store: FileStore | None, config: FilesConfig, kept: KeptAnswers | None = None
    ) -> None:
        self._kept = kept
        self._edge = edge
        self._store = store
        self._config = config

    async def create(self, request: Request) -> Response:
        """Take a file; one that comes again with its key is there once."""
        tenant, store = await self._edge.authenticate(request), self.store()
        config, file_id, key = self._config, new_file_id(), idempotency_key(request.headers)
        self._edge.admission.check(tenant)
        async with _answering():
            writer = await store.writer(tenant.id, file_id)
        with writer:
            check = LineCheck(config.max_lines)
            upload = Upload(request.headers.get("content-type", ""), writer, check, config.max_bytes)
            with self._edge.bodies.enter(tenant):
                kept_s = await self._read(request, upload)
            stored = StoredFile(id=file_id, filename=upload.filename, purpose=PURPOSE, facts=upload.facts)

            async def put() -> bytes:
                async with _answering():
                    found = await store.put(tenant.id, stored, writer, min(kept_s or config.kept_s, config.kept_s))
                if found is None:
                    text = "the tenant has no room for this file: delete some, or wait until one expires"
                    raise InsufficientQuota(text)
                return orjson.dumps(file_object(found))

            if not key or self._kept is None:
                return _json(await put())
            async with self._kept.once(tenant.id, key, request.url.path, upload.content) as turn:
                if turn is None:
                    return _json(await put(), (STREAM_HEADER, NO_STREAM))
                if turn.answer:
                    return _json(turn.answer, REPLAYED)
                turn.made = await put()
                return _json(turn.made)

    async def list_files(self, request: Request) -> Response:
        """Files in pages, the newest first."""
        query = request.query_params
        for name in query:
            if name not in _LIST_FIELDS:
                text = f"{name[:100]} is not supported by this server"
                raise BadRequest(text, param=name[:100], code="unsupported_parameter")
        limit, order, after = query.get("limit", str(_MAX_LIMIT)), query.get("order", "desc"), query.get("after")
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 5 and 1 <= int(limit) <= _MAX_LIMIT):
            raise BadRequest(f"limit must be a whole number from 1 to {_MAX_LIMIT}", param="limit")
        if order not in ("asc", "desc"):
            raise BadRequest("order must be asc or desc", param="order")
        tenant, store = await self._edge.reader(request, LIST_CALLS), self.store()
        async with _answering():
            found = await store.list_files(tenant.id)
        found = [file for file in found if file.purpose == query.get("purpose", file.purpose)]
        ordered = found if order == "desc" else found[::-1]
        names = [file.id for file in ordered]
        if after is not None and after not in names:
            raise BadRequest("after must be the id of a file of this list", param="after")
        rest = ordered if after is None else ordered[names.index(after) + 1 :]
        shown = [file_object(file) for file in rest[: int(limit)]]
        ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": "", "last_id": ""}
        return OrjsonResponse({"object": "list", "data": shown, **ends, "has_more": len(rest) > len(shown)})

    async def show(self, request: Request) -> Response:
        """A file without its bytes."""
        _, file = await self._find(request)
        return OrjsonResponse(file_object(file))

    async def delete(self, request: Request) -> Response:
        """Delete it; a batch that has not read all of it ends with what was answered."""
        tenant, file = await self._find(request)
        async with _answering():
            await self.store().delete(tenant.id, file.id)
        return OrjsonResponse({"id": file.id, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        """Its bytes, or a range of them."""
        tenant, file = await self._find(request)
        begin, end, status = 0, file.num_bytes, 200
        headers = {"accept-ranges": "bytes", "content-disposition": "attachment"}
        if (text := request.headers.get("range")) is not None and (found := _RANGE.fullmatch(text)) is not None:
            span = _span(found[1], found[2], file.num_bytes)
            if span is None:
                body = error_body(BadRequest("the file has no such range", param="range", code="invalid_range"))
                return OrjsonResponse(body, status_code=416, headers={"content-range": f"bytes */{file.num_bytes}"})
            (begin, end), status = span, 206
            headers["content-range"] = f"bytes {begin}-{end - 1}/{file.num_bytes}"
        headers["content-length"] = str(end - begin)
        parts = self.store().read(tenant.id, file, begin, end)
        first = await anext(parts)  # before the status: what cannot be read at all is an error with its code
        return StreamingResponse(_joined(first, parts), status, headers, media_type="application/octet-stream")

    def store(self) -> FileStore:
        """Where files are; raises ``BadRequest`` where there are none."""
        if self._store is None:
            text = "this gateway keeps no files: it needs a platform key and an object store"
            raise BadRequest(text, code="unsupported_operation")
        return self._store

    async def _find(self, request: Request) -> tuple[Tenant, StoredFile]:
        tenant = await self._edge.reader(request)
        async with _answering():
            file = await self.store().find(tenant.id, request.path_params["file_id"])
        if file is None:
            raise NotFound("there is no file of this id: it was deleted, or its time is over")
        return tenant, file

    async def _read(self, request: Request, upload: Upload) -> float | None:
        try:
            async with asyncio.timeout(self._config.upload_s):
                async for part in request.stream():
                    await asyncio.to_thread(upload.feed, part)
            return await asyncio.to_thread(upload.finish)
        except TimeoutError as error:
            raise BodyTimeout(f"the file did not arrive within {self._config.upload_s:g} s") from error
        except OSError as error:
            raise DependencyDown("the gateway's disk takes no file now") from error


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in rest:
        yield part


def _json(content: bytes, *headers: tuple[bytes, bytes]) -> Response:
    shown = {name.decode(): value.decode() for name, value in headers}
    return Response(content, headers=shown, media_type="application/json")


def file_object(file: StoredFile) -> dict[str, Any]:
    """A file, as clients see it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": file.created_unix_s,
        "expires_at": file.expires_unix_s,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def _span(first: str, last: str, num_bytes: int) -> tuple[int, int] | None:
    """Begin and end of a range; ``None`` where the file has none of it."""
    if not first:
        begin, end = num_bytes - int(last or "0"), num_bytes
    else:
        begin, end = int(first), min(int(last) + 1, num_bytes) if last else num_bytes
    begin = max(0, begin)
    return (begin, end) if begin < end else None


@asynccontextmanager
async def _answering() -> AsyncIterator[None]:
    """Raise ``DependencyDown`` for a store that does not answer."""
    try:
        yield
    except RedisError as error:
        raise DependencyDown("files cannot be kept or read now") from error
