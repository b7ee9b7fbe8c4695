"""Identity of a batch's lines, which no repetition changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from stratos.common.ids import new_id
from stratos_gateway.answering.contract import Step
from stratos_gateway.answering.request import LINE, BatchLine, ClientRequest, PreparedGeneration
from stratos_gateway.embedding.preparation import PreparedEmbedding
from stratos_gateway.moderation.route import PreparedModeration
from stratos_gateway.streams.asking import derived_id, derived_seed


class LineStep(Step):
    """Gives a line of a batch its identity: the same tokens and the same bill, however often it runs."""

    def around(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[None] | None:
        """Fix it before the answer is sought; other requests have one of their own."""
        line: BatchLine | None = request.http.scope.get(LINE)
        return None if line is None else _fixed(request, line)


@asynccontextmanager
async def _fixed(request: ClientRequest[Any], line: BatchLine) -> AsyncIterator[None]:
    _fix(request, line)
    yield


def _fix(request: ClientRequest[Any], line: BatchLine) -> None:
    secret, prepared = request.tenant.cache_salt, request.prepared
    kind = "modr" if isinstance(prepared, PreparedModeration) else "emb"
    request.fixed_id = derived_id(secret, f"{line.name}/{kind}", new_id(kind))
    if isinstance(prepared, PreparedEmbedding):
        meter = replace(prepared.meter, arrived_unix_ms=line.arrived_unix_ms)
        request.prepared = replace(prepared, meter=meter)
    if not isinstance(prepared, PreparedGeneration):
        return
    own = prepared.identity
    ids = (derived_id(secret, f"{line.name}/{place}", new_id("gen")) for place in range(len(prepared.specs)))
    identity = replace(
        own,
        answer_id=derived_id(secret, line.name, own.answer_id),
        created=line.created_unix_s,
        arrived_unix_ms=line.arrived_unix_ms,
        seed=own.seed if prepared.has_given_seed else derived_seed(secret, line.name),
        request_ids=tuple(ids),
        epoch=line.epoch,
    )
    request.prepared = prepared.rebuilt(identity)
