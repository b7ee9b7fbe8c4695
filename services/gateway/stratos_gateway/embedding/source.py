"""Prefill workers as the source of embeddings, and the answer as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

from starlette.responses import Response

from stratos.common.ids import new_id
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.pricing import Times, TokenCounts
from stratos.core.tenant import Tenant
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.answering.draft import Draft
from stratos_gateway.answering.output import Output
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.answering.whole import send_whole
from stratos_gateway.embedding.client import EmbeddingClient
from stratos_gateway.embedding.preparation import PreparedEmbedding
from stratos_gateway.embedding.run import embed_all
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.generation.succession import moves
from stratos_gateway.openai.chunks import Usage
from stratos_gateway.openai.embedding_requests import embedding_answer

INLINE_BYTES = 64 * 1024
"""Vectors above this are turned into JSON in a thread."""


Settle = Callable[[Sequence[Draft]], Awaitable[None]]
"""Gets entries into the ledger at once; returns soon, also where it cannot."""


class VectorOutput(Output):
    """All vectors of a request.

    Args:
        vectors: in input order, float32.
        prepared: the request.
        tenant: whose it is.
        times: until all of them were there, as that of a first token.
        fixed_id: by which it is billed; empty draws one.
    """

    tells_load = False

    def __init__(
        self, vectors: Sequence[bytes], prepared: PreparedEmbedding, tenant: Tenant, times: Times, fixed_id: str = ""
    ) -> None:
        self.vectors = vectors
        self.is_billed = False
        """It is in the ledger, or on its way."""
        self._prepared = prepared
        self._tenant = tenant
        self._times = times
        self._id = fixed_id or new_id("emb")

    @property
    def usage(self) -> Usage:
        """Prompt tokens alone."""
        return Usage(self._prepared.num_tokens)

    def times(self, received_s: float) -> Sequence[Times]:
        """The time until its vectors were there."""
        return [self._times]

    def drafts(self, error: BaseException | None) -> Sequence[Draft]:
        """One for the request, now that its vectors are there; workers keep no count of it."""
        return [
            Draft(
                request_id=self._id,
                tenant=self._tenant.id,
                plan=self._tenant.plan,
                tag=self._prepared.meter,
                outcome=RequestOutcome.FINISHED,
                counts=TokenCounts(num_prompt=self._prepared.num_tokens),
                times=self._times,
            )
        ]


class VectorSource:
    """Runs requests for embeddings on this platform.

    Args:
        fleet: shared.
        admission: ends them where they lose their place.
        client: calls workers.
        timeout_s: longest time of one request.
        settle: writes into the ledger before the client is answered; ``None`` where nothing is billed.
    """

    def __init__(
        self,
        fleet: FleetAccess,
        admission: Admission,
        client: EmbeddingClient,
        timeout_s: float,
        settle: Settle | None = None,
    ) -> None:
        self._settle = settle
        self._fleet = fleet
        self._admission = admission
        self._client = client
        self._timeout_s = timeout_s

    @asynccontextmanager
    async def open(self, request: ClientRequest[PreparedEmbedding]) -> AsyncIterator[VectorOutput]:
        """Compute all vectors; cancelling ends the work at the workers."""
        prepared, left_s = request.prepared, max(0.0, request.deadline_s - self._fleet.clock.now())
        may_move = partial(moves, request) if request.kept_body else None
        work = embed_all(prepared.call, self._fleet, self._client, min(self._timeout_s, left_s), may_move)
        vectors = await self._admission.run_in(request.place, work)
        self._fleet.metrics.embedding_inputs.inc(len(vectors))
        took_s = max(0.0, self._fleet.clock.now() - request.received_s)
        output = VectorOutput(vectors, prepared, request.tenant, Times(ttft_us=round(1e6 * took_s)), request.fixed_id)
        if self._settle is not None:
            await request.until_open()  # what others have its slots for is not billed
            output.is_billed = True
            await self._settle(output.drafts(None))
        yield output


class VectorSender:
    """Writes vectors as one JSON object."""

    def waiting(self, request: ClientRequest[PreparedEmbedding]) -> AbstractAsyncContextManager[None]:
        """The client hears nothing before its vectors."""
        return nullcontext()

    async def send(self, request: ClientRequest[PreparedEmbedding], output: VectorOutput) -> None:
        """Large answers are encoded in a thread, beside the streams of others."""
        vectors, parts = output.vectors, (request.prepared.body, output.vectors, request.prepared.num_tokens)
        is_small = sum(map(len, vectors)) <= INLINE_BYTES
        answer = embedding_answer(*parts) if is_small else await asyncio.to_thread(embedding_answer, *parts)
        await send_whole(request, Response(answer, media_type="application/json"), is_billed=output.is_billed)
