"""GET /v1/streams/{id} goes on with a stream; POST /v1/streams/{id}/cancel ends it for good."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stratos.common.errors import DependencyDown, NotFound, StreamGone
from stratos.core.tenant import Tenant
from stratos.store.sealed.moved_texts import RecordUnread
from stratos.store.sealed.stream_store import Found, StreamAsk, StreamRecord
from stratos_gateway.answering.endpoint import Begun, Endpoint
from stratos_gateway.answering.request import RESUMED
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.streams.asking import cursor_tag, idempotency_key, is_stream_id, last_event_id, stream_id
from stratos_gateway.streams.codec import decode_head
from stratos_gateway.streams.desk import SealedStreams

_WHOLE = ".z"


class RecordedStreams:
    """Streams of the tenants that ask for them; one of another tenant is as unknown as one that never was.

    Args:
        authenticate: whose key a request carries.
        store: of records; ``None`` keeps none.
    """

    def __init__(
        self,
        authenticate: Callable[[Request], Awaitable[Tenant]],
        store: SealedStreams | None,
    ) -> None:
        self.authenticate = authenticate
        self._store = store

    async def cancel(self, request: Request) -> Response:
        """End it; one that has ended stays as it is."""
        tenant, stream = await self.authenticate(request), request.path_params["stream_id"]
        store, _ = self.store_of(tenant, stream)
        try:
            before = await store.cancel(tenant.id, stream)
        except (DependencyDown, RedisError) as error:
            raise DependencyDown("the record of this stream cannot be written") from error
        if before == "none":
            raise StreamGone("this stream is kept no more")
        status = {"done": "completed", "failed": "failed"}.get(before, "cancelled")
        return OrjsonResponse({"id": stream, "object": "stream", "status": status})

    def store_of(self, tenant: Tenant, stream: str) -> tuple[SealedStreams, bytes]:
        """Where a stream would be, and the sub-key of its tenant.

        Raises:
            NotFound: it is of no stream of this tenant.
            DependencyDown: that is not known.
        """
        if self._store is None:
            raise NotFound("there is no stream of this id")
        if (sub_key := self._store.key(tenant.id)) is None:
            raise DependencyDown("the tenant has no data key yet")
        if not is_stream_id(sub_key, stream):
            raise NotFound("there is no stream of this id")
        return self._store, sub_key


class StreamResume:
    """ASGI application of the route that goes on with a stream.

    Args:
        streams: of all tenants.
        endpoints: routes that streams began at, by path.
    """

    def __init__(self, streams: RecordedStreams, endpoints: Mapping[str, Endpoint[Any]]) -> None:
        self._streams = streams
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the request that began the stream, from behind the last event that the client has."""
        http = Request(scope, receive)
        await self.resume(http, receive, send, await self._streams.authenticate(http), http.path_params["stream_id"])

    async def resume(
        self, http: Request, receive: Receive, send: Send, tenant: Tenant, stream_id: str, **more: Any
    ) -> None:
        """Answer a client that comes back to a stream; ``more`` stands in its body in place of what was asked for.

        Raises:
            NotFound, StreamGone: there is no such stream, or no more.
            DependencyDown: the record cannot be read.
        """
        scope = http.scope
        store, sub_key = self._streams.store_of(tenant, stream_id)
        record = await look(store, tenant.id, stream_id)
        head, cursor = decode_head(record.head), last_event_id(http.headers)
        endpoint = None if head is None else self._endpoints.get(head.path)
        if record.found is Found.NONE or head is None or endpoint is None:
            raise StreamGone("this stream is kept no more")
        if cursor == cursor_tag(sub_key, stream_id) + _WHOLE:
            return await Response(status_code=204)(scope, receive, send)
        scope[RESUMED] = stream_id
        body = {**orjson.loads(head.body), **more}
        await endpoint.resume(http, receive, send, tenant, head.body, body, head.identity.model_digest)


class BegunAnswers:
    """Looks into records of streams, for requests that come back and would be refused: a name has moved since their
    answers began, fields of theirs are refused since, or a budget is spent.

    Args:
        store: of records.
    """

    def __init__(self, store: SealedStreams) -> None:
        self._store = store

    async def __call__(self, http: Request, tenant: Tenant) -> Begun | None:
        """The recorded answer to a request; ``None`` where there is none, or it is not known.

        Args:
            http: the request.
            tenant: whose key it carries.

        Raises:
            BadRequest: like ``idempotency_key``.
        """
        key, sub_key = idempotency_key(http.headers), self._store.key(tenant.id)
        if not key or sub_key is None:
            return None
        try:
            head = decode_head((await look(self._store, tenant.id, stream_id(sub_key, key))).head)
        except (DependencyDown, StreamGone):
            return None  # its record could not be gone on with, either
        return None if head is None else Begun(head.identity.model_digest, head.body)

    async def has_output(self, http: Request, tenant: Tenant) -> bool:
        """Whether the recorded answer to a request is whole, or has begun; False where that is not known."""
        key, sub_key = idempotency_key(http.headers), self._store.key(tenant.id)
        if sub_key is None or not (key or RESUMED in http.scope):
            return False
        stream = http.scope.get(RESUMED) or stream_id(sub_key, key)
        try:
            record = await look(self._store, tenant.id, stream, first_block=0)
        except (DependencyDown, StreamGone):
            return False
        return record.found is Found.DONE or bool(record.blocks)


async def look(store: SealedStreams, tenant_id: str, stream: str, first_block: int = 1 << 30) -> StreamRecord:
    """A record as it is, which is not taken over by that; raises ``DependencyDown``."""
    ask = StreamAsk(tenant_id=tenant_id, stream_id=stream, first_block=first_block, may_take=False)
    try:
        return await store.open(ask)
    except RecordUnread:
        raise
    except (DependencyDown, RedisError) as error:
        raise DependencyDown("the record of this stream cannot be read") from error
