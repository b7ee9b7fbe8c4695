"""The life of an embeddings request: groups of inputs, each placed at a prefill worker, tried again when it is lost.

    inputs -> groups of neighbours -> at most ``MAX_GROUPS_AT_ONCE`` run side by side; a group is one placement and
    one call -> vectors in input order

Embedding has no effect besides its answer, so a group whose worker was lost, leaves or is full is simply asked for
again elsewhere, until the deadline.  A group never settles before its answer: one that saw a worker die is a suspect,
and refused after the second one.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

from stratos.common.errors import QueueTimeout, StratosError
from stratos.common.ids import new_id
from stratos.core.features import features_of_call
from stratos.core.placement import Outcome, Placement, PlacementRequest, Work
from stratos.core.requests.embedding import EmbedCall
from stratos_gateway.embedding.client import EmbeddingClient, Unreachable
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.generation.recovery import AttemptLoss, Attempts, Cause, cause_of
from stratos_gateway.generation.succession import MayMove

MAX_GROUP_INPUTS = 32
MAX_GROUP_TOKENS = 8192
"""Bound of a group with more than one input: a few steps of work, so that workers share a large request."""
MAX_GROUPS_AT_ONCE = 8


def groups(call: EmbedCall) -> Iterator[EmbedCall]:
    """Split the inputs into groups of neighbours."""
    group: list[tuple[int, ...]] = []
    num_tokens = 0
    for ids in call.inputs:
        if group and (len(group) == MAX_GROUP_INPUTS or num_tokens + len(ids) > MAX_GROUP_TOKENS):
            yield dataclasses.replace(call, inputs=tuple(group))
            group, num_tokens = [], 0
        group.append(ids)
        num_tokens += len(ids)
    if group:
        yield dataclasses.replace(call, inputs=tuple(group))


async def embed_all(
    call: EmbedCall,
    fleet: FleetAccess,
    client: EmbeddingClient,
    timeout_s: float,
    may_move: MayMove | None = None,
) -> list[bytes]:
    """Vectors of all inputs, float32; cancelling ends all work.

    Raises:
        QueueTimeout: not done in time.
        Superseded: ``may_move`` says that a newer revision may be asked, and one has workers.
        StratosError: what ended the first group that failed.
    """
    gate = asyncio.Semaphore(MAX_GROUPS_AT_ONCE)
    now_s = fleet.clock.now()
    terms = dataclasses.replace(call.terms, arrival_s=now_s, deadline_s=now_s + timeout_s)
    call = dataclasses.replace(call, terms=terms)

    async def run(group: EmbedCall) -> list[bytes]:
        async with gate:
            return await GroupRun(group, fleet, client, may_move).run()

    tasks = [asyncio.create_task(run(group)) for group in groups(call)]
    try:
        async with asyncio.timeout(timeout_s):
            return [vector for vectors in await asyncio.gather(*tasks) for vector in vectors]
    except TimeoutError as error:
        raise QueueTimeout(f"the inputs were not embedded within {timeout_s:g} s; try again") from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class GroupRun:
    """One group from its first placement to its vectors.

    Args:
        call: the group, with the deadline of the request.
        fleet: routers, clock, metrics.
        client: calls workers.
        may_move: as of ``embed_all``.
    """

    def __init__(
        self, call: EmbedCall, fleet: FleetAccess, client: EmbeddingClient, may_move: MayMove | None = None
    ) -> None:
        self._call = dataclasses.replace(call, request_id=new_id("emb"))
        self._fleet = fleet
        self._client = client
        request = PlacementRequest(
            request_id=self._call.request_id,
            terms=call.terms.for_router(),
            model_digest=call.model_digest,
            num_prompt_tokens=sum(map(len, call.inputs)),
            max_output_tokens_total=0,
            num_choices=len(call.inputs),
            work=Work.EMBEDDING,
            zone=fleet.zone,
            region=fleet.region,
            prompt_digest=fleet.prompt_digests.of(call.terms, call.model_digest, call.inputs),
            trace=call.trace,
            required_features=features_of_call(call),
        )
        self._attempts = Attempts(fleet, request, max_wait_s=None, may_move=may_move)

    async def run(self) -> list[bytes]:
        """Try until there are vectors. Raises like ``embed_all``."""
        while True:
            placement = await self._attempts.place()
            result = await self._attempt(placement)
            if isinstance(result, list):
                return result
            await self._attempts.prepare_next(result, placement)

    async def _attempt(self, placement: Placement) -> list[bytes] | AttemptLoss:
        outcome = Outcome.CANCELLED
        with self._attempts.span("attempt") as span:
            call = dataclasses.replace(self._call, attempt=self._attempts.number, trace=span.trace)
            try:
                vectors = await self._client.embed(placement.worker, call)
                outcome = Outcome.FINISHED
                return vectors
            except StratosError as error:
                outcome = Outcome.FAILED
                cause = Cause.UNREACHABLE if isinstance(error, Unreachable) else cause_of(error)
                if cause is None:
                    raise
                span.set(cause=cause)
                span.fail(cause)
                loss = AttemptLoss(cause=cause)
                await self._attempts.judge(loss, placement)
                return loss
            finally:
                self._fleet.routers.report(placement, outcome, 0)
                span.set(worker_id=placement.worker.worker_id, outcome=outcome)
