"""POST and GET /v1/batches, GET /v1/batches/{id}, POST /v1/batches/{id}/cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response

from stratos.common.errors import BadRequest, ConcurrencyLimited, DependencyDown, KeyReused, NotFound
from stratos.core.requests.limits import check_metadata
from stratos.core.tenant import Tenant
from stratos.store.sealed.batch_store import BatchHead, BatchStore, StoredBatch
from stratos.store.sealed.file_store import StoredFile
from stratos_gateway.access.call_rate import LIST_CALLS
from stratos_gateway.answering.edge import Edge
from stratos_gateway.batches.settings import BatchesConfig
from stratos_gateway.batches.views import batch_object
from stratos_gateway.files.lines import BATCH_ROUTES
from stratos_gateway.files.upload import MIN_KEPT_S
from stratos_gateway.http.body import OrjsonResponse, read_json
from stratos_gateway.models.catalogue import ModelCatalogue
from stratos_gateway.openai.fields import Fields, object_fields
from stratos_gateway.streams.asking import idempotency_key

WINDOW = "24h"
_MAX_PAGE = 100
_REPLAYED = {"idempotent-replayed": "true"}


class BatchRoutes:
    """The routes; another tenant's batch is as unknown as one that never was.

    Args:
        edge: keys, and bounds of bodies.
        store: of batches; ``None`` keeps none.
        catalogue: names of models.
        config: windows.
    """

    def __init__(self, edge: Edge, store: BatchStore | None, catalogue: ModelCatalogue, config: BatchesConfig) -> None:
        self._edge = edge
        self._store = store
        self._catalogue = catalogue
        self._config = config

    async def create(self, request: Request) -> Response:
        """Begin a batch."""
        tenant, limits = await self._edge.authenticate(request), self._edge.limits
        with self._edge.bodies.enter(tenant):
            body = await read_json(request, max_bytes=limits.max_body_bytes, timeout_s=limits.body_timeout_s)
        head, store, key = _head(body, tenant), self._opened(), idempotency_key(request.headers)
        async with _answering():
            batch_id = store.new_id(tenant.id, key)
            before = await store.find(tenant.id, batch_id) if key else None
            if before is None:
                await self._begin(tenant, batch_id, head)
            found = before or await self._find(tenant, batch_id)
        if replace(found.head, tenant_name=head.tenant_name, key_id=head.key_id) != head:
            raise KeyReused("this idempotency key was used for a batch of other terms")
        return OrjsonResponse(batch_object(found), headers={} if before is None else _REPLAYED)

    async def show(self, request: Request) -> Response:
        """A batch as it stands."""
        tenant = await self._edge.reader(request)
        async with _answering():
            return OrjsonResponse(batch_object(await self._find(tenant, request.path_params["batch_id"])))

    async def list_batches(self, request: Request) -> Response:
        """Batches in pages, the newest first."""
        query = request.query_params
        for name in query:
            if name not in ("limit", "after"):
                text = f"{name[:100]} is not supported by this server"
                raise BadRequest(text, param=name[:100], code="unsupported_parameter")
        limit, after = query.get("limit", "20"), query.get("after")
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= _MAX_PAGE):
            raise BadRequest(f"limit must be a whole number from 1 to {_MAX_PAGE}", param="limit")
        tenant, store = await self._edge.reader(request, LIST_CALLS), self._opened()
        async with _answering():
            names = await store.names(tenant.id)
            if after is not None and after not in names:
                raise BadRequest("after must be the id of a batch of this list", param="after")
            rest = names if after is None else names[names.index(after) + 1 :]
            found = [await store.find(tenant.id, name) for name in rest[: int(limit)]]
        shown = [batch_object(batch) for batch in found if batch is not None]
        ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": "", "last_id": ""}
        return OrjsonResponse({"object": "list", "data": shown, **ends, "has_more": len(rest) > int(limit)})

    async def cancel(self, request: Request) -> Response:
        """End a batch; what was answered is kept."""
        tenant, batch_id = await self._edge.reader(request), request.path_params["batch_id"]
        async with _answering():
            await self._find(tenant, batch_id)
            await self._opened().cancel(tenant.id, batch_id)
            return OrjsonResponse(batch_object(await self._find(tenant, batch_id)))

    async def _begin(self, tenant: Tenant, batch_id: str, head: BatchHead) -> None:
        store = self._opened()
        file = await store.files.find(tenant.id, head.input_file_id)
        await self._check(tenant, head, file)
        assert file is not None, "checked"
        num_lines, index = int(file.facts["lines"]), orjson.loads(await store.files.read_index(tenant.id, file))
        if not await store.create(tenant.id, batch_id, head, num_lines, len(index), self._config.window_s):
            raise ConcurrencyLimited(f"the tenant has {self._config.tenant_batches} batches, its limit")

    async def _check(self, tenant: Tenant, head: BatchHead, file: StoredFile | None) -> None:
        """Refuse a batch whose lines could not run; raises ``BadRequest`` and ``ModelNotFound``."""
        if file is None:
            raise BadRequest("there is no file of this id", param="input_file_id", code="file_not_found")
        if file.purpose != "batch":
            raise BadRequest("the file must have the purpose batch", param="input_file_id", code="invalid_file")
        if file.facts["urls"] != [head.endpoint]:
            text = f"lines of the file are for {', '.join(file.facts['urls'])}; they must all be for the endpoint"
            raise BadRequest(text, param="endpoint", code="mismatched_endpoint")
        for model in file.facts["models"]:
            await self._catalogue.resolve(tenant, model)

    async def _find(self, tenant: Tenant, batch_id: str) -> StoredBatch:
        found = await self._opened().find(tenant.id, batch_id)
        if found is None:
            raise NotFound("there is no batch of this id")
        return found

    def _opened(self) -> BatchStore:
        if self._store is None:
            text = "this gateway has no batches: it needs a platform key and an object store"
            raise BadRequest(text, code="unsupported_operation")
        return self._store


def parse_batch(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a batch, checked; raises ``BadRequest``."""
    fields = Fields(body)
    found = {name: fields.take(name) for name in ("input_file_id", "endpoint", "completion_window")}
    metadata, after = check_metadata(fields.take("metadata")), fields.take("output_expires_after")
    fields.end()
    if not isinstance(found["input_file_id"], str):
        raise BadRequest("input_file_id must be a string", param="input_file_id")
    if found["endpoint"] not in BATCH_ROUTES:
        raise BadRequest(f"endpoint must be one of {', '.join(BATCH_ROUTES)}", param="endpoint")
    if found["completion_window"] != WINDOW:
        raise BadRequest(f"completion_window must be {WINDOW}", param="completion_window")
    return {**found, "metadata": metadata, "kept_s": None if after is None else _kept_s(after)}


def _head(body: dict[str, Any], tenant: Tenant) -> BatchHead:
    found = parse_batch(body)
    return BatchHead(
        input_file_id=found["input_file_id"],
        endpoint=found["endpoint"],
        window=WINDOW,
        tenant_name=tenant.name,
        key_id=tenant.key_id,
        metadata=found["metadata"],
        kept_s=found["kept_s"],
    )


def _kept_s(value: Any) -> float:
    within = object_fields(value, "output_expires_after")
    anchor, seconds = within.take("anchor"), within.take("seconds")
    within.end()
    if anchor != "created_at" or type(seconds) is not int or not MIN_KEPT_S <= seconds <= 10**9:
        text = f"output_expires_after must have the anchor created_at, and seconds from {MIN_KEPT_S}"
        raise BadRequest(text, param="output_expires_after")
    return float(seconds)


@asynccontextmanager
async def _answering() -> AsyncIterator[None]:
    """Raise ``DependencyDown`` for a store that does not answer."""
    try:
        yield
    except RedisError as error:
        raise DependencyDown("batches cannot be kept or read now") from error
