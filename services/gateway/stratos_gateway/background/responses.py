"""Background responses for their clients: found, ended and removed at any gateway."""

from __future__ import annotations

from typing import Any

import orjson
from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown, StreamGone
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.store.sealed.stream_store import Found, StreamRecord
from stratos_gateway.http.body import Leniently
from stratos_gateway.preparation.generation import GenerationPreparer
from stratos_gateway.streams.asking import stream_of_response
from stratos_gateway.streams.codec import decode_head
from stratos_gateway.streams.desk import SealedStreams
from stratos_gateway.streams.routes import look
from stratos_gateway.streams.standing import standing_response


class BackgroundResponses:
    """Background responses of the tenants that ask; one of another tenant is as unknown as one that never was.

    Args:
        store: of records.
        preparer: of requests for responses.
    """

    def __init__(self, store: SealedStreams, preparer: GenerationPreparer) -> None:
        self._store = store
        self._preparer = preparer

    def stream_of(self, tenant: Tenant, response_id: str) -> str:
        """The stream of a background response; "" for any other id."""
        sub_key = self._store.key(tenant.id)
        return "" if sub_key is None else stream_of_response(sub_key, response_id)

    async def find(self, tenant: Tenant, response_id: str) -> dict[str, Any] | None:
        """The response as it stands; ``None`` where it is no background response of the tenant.

        Raises:
            StreamGone: its time is over.
            DependencyDown: the record cannot be read now.
        """
        stream = self.stream_of(tenant, response_id)
        if not stream:
            return None
        return await self._shown(tenant, await look(self._store, tenant.id, stream, first_block=0))

    async def cancel(self, tenant: Tenant, response_id: str) -> dict[str, Any] | None:
        """End it, and tell how it stands; one that has ended stays as it is. Raises like ``find``."""
        stream = self.stream_of(tenant, response_id)
        if not stream:
            return None
        try:
            await self._store.cancel(tenant.id, stream)
        except (DependencyDown, RedisError) as error:
            raise DependencyDown("the record of this response cannot be written") from error
        return await self.find(tenant, response_id)

    async def delete(self, tenant: Tenant, response_id: str) -> bool:
        """Remove it, which ends it; whether there was one."""
        stream = self.stream_of(tenant, response_id)
        if not stream:
            return False
        try:
            return await self._store.drop(tenant.id, stream)
        except (DependencyDown, RedisError) as error:
            raise DependencyDown("the record of this response cannot be removed") from error

    async def _shown(self, tenant: Tenant, record: StreamRecord) -> dict[str, Any]:
        head = decode_head(record.head)
        if record.found is Found.NONE or head is None:
            raise StreamGone("this response is kept no more")
        with Leniently(is_lenient=True):  # as the gateway may have been that took it
            body, revision = orjson.loads(head.body), head.identity.model_digest
            prepared = await self._preparer.prepare(body, tenant, NO_TRACE, revision)
        return standing_response(prepared, record)
