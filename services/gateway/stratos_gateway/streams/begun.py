"""A request comes back whose name stands for something else by now: which revision its answer began with."""

from __future__ import annotations

from redis.exceptions import RedisError
from starlette.requests import Request

from stratos.common.errors import DependencyDown
from stratos.core.tenant import Tenant
from stratos.store.models.alias_forms import split_name
from stratos.store.sealed.stream_store import StreamAsk
from stratos_gateway.models.catalogue import ModelCatalogue
from stratos_gateway.streams.asking import idempotency_key, stream_id
from stratos_gateway.streams.codec import decode_head
from stratos_gateway.streams.desk import SealedStreams

_NO_BLOCKS = 1 << 30


class BegunAnswers:
    """Looks into records of streams, for requests with a key that cannot be prepared as their names stand now.

    Args:
        store: of records.
        catalogue: what names stand for.
    """

    def __init__(self, store: SealedStreams, catalogue: ModelCatalogue) -> None:
        self._store = store
        self._catalogue = catalogue

    async def __call__(self, http: Request, tenant: Tenant, name: object) -> str:
        """Digest of the model that the answer began with; "" where none has, or it is not known.

        Args:
            http: the request.
            tenant: whose key it carries.
            name: field ``model`` of its body.

        Raises:
            BadRequest: like ``idempotency_key``.
        """
        key, sub_key = idempotency_key(http.headers), self._store.key(tenant.id)
        if not key or sub_key is None or not isinstance(name, str) or not self._may_have_moved(name):
            return ""
        ask = StreamAsk(
            tenant_id=tenant.id, stream_id=stream_id(sub_key, key), first_block=_NO_BLOCKS, may_take=False
        )  # fmt: skip
        try:
            head = decode_head((await self._store.open(ask)).head)
        except (DependencyDown, RedisError):
            return ""  # its record could not be gone on with, either
        return "" if head is None else head.identity.model_digest

    def _may_have_moved(self, name: str) -> bool:
        """An alias, or a model of several revisions: other names are not worth a look."""
        revisions = self._catalogue.models.of_digits(split_name(name)[0], "")
        return self._catalogue.aliases.source.find(name) is not None or len(revisions) > 1
