"""The life of an embeddings request: groups of inputs, each placed at a prefill worker, tried again when it is lost.

    inputs -> groups of neighbours -> at most ``MAX_GROUPS_AT_ONCE`` run side by side; a group is one placement and
    one call -> vectors in input order

Embedding has no effect besides its answer, so a group whose worker was lost, leaves or is full is simply asked for
again elsewhere, until the deadline.  A group that saw ``MAX_DEATHS`` workers die is refused: it may be the cause.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator

from stratos.common.errors import Draining, Overloaded, QueueTimeout, StratosError, WorkerLost
from stratos.common.ids import new_id
from stratos.core.placement import Outcome, Placement, PlacementRequest, Work
from stratos.core.trace import TraceContext
from stratos.rpc.tracing import Span, SpanKind
from stratos_gateway.generation.attempt import Cause, cause_of
from stratos_gateway.generation.embedding_client import EmbeddingClient, EmbeddingSpec, Unreachable
from stratos_gateway.generation.generation import MAX_DEATHS, RETRY_WAIT_S
from stratos_gateway.generation.platform import Platform

_log = logging.getLogger(__name__)
MAX_GROUP_INPUTS = 32
MAX_GROUP_TOKENS = 8192
"""Of a group with more than one input: a few steps of work, so that workers share a large request."""
MAX_GROUPS_AT_ONCE = 8


def groups(spec: EmbeddingSpec) -> Iterator[EmbeddingSpec]:
    """Split the inputs into groups of neighbours."""
    group: list[tuple[int, ...]] = []
    num_tokens = 0
    for ids in spec.inputs:
        if group and (len(group) == MAX_GROUP_INPUTS or num_tokens + len(ids) > MAX_GROUP_TOKENS):
            yield dataclasses.replace(spec, inputs=tuple(group))
            group, num_tokens = [], 0
        group.append(ids)
        num_tokens += len(ids)
    if group:
        yield dataclasses.replace(spec, inputs=tuple(group))


async def embed_all(spec: EmbeddingSpec, platform: Platform, client: EmbeddingClient, timeout_s: float) -> list[bytes]:
    """Vectors of all inputs, float32; cancelling ends all work.

    Raises:
        QueueTimeout: not done in time.
        StratosError: what ended the first group that failed.
    """
    gate = asyncio.Semaphore(MAX_GROUPS_AT_ONCE)
    deadline_s = platform.clock.now() + timeout_s

    async def run(group: EmbeddingSpec) -> list[bytes]:
        async with gate:
            return await GroupRun(group, platform, client, deadline_s).run()

    tasks = [asyncio.create_task(run(group)) for group in groups(spec)]
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
        spec: the group.
        platform: router, clock, metrics.
        client: calls workers.
        deadline_s: monotonic seconds.
    """

    def __init__(self, spec: EmbeddingSpec, platform: Platform, client: EmbeddingClient, deadline_s: float) -> None:
        self._spec = spec
        self._platform = platform
        self._client = client
        self._deadline_s = deadline_s
        self._request_id = new_id("emb")
        self._number = 0
        self._num_deaths = 0
        self._started_s = platform.clock.now()
        self._excluded: set[str] = set()

    async def run(self) -> list[bytes]:
        """Try until there are vectors. Raises like ``embed_all``."""
        while True:
            placement = await self._place()
            result = await self._attempt(placement)
            if isinstance(result, list):
                return result
            await self._prepare_retry(result, placement)
            self._number += 1

    async def _attempt(self, placement: Placement) -> list[bytes] | Cause:
        outcome = Outcome.CANCELLED
        left_s = self._deadline_s - self._platform.clock.now()
        with self._span("attempt") as span:
            spec = dataclasses.replace(self._spec, trace=span.trace)
            try:
                vectors = await self._client.embed(placement.worker, spec, self._request_id, self._number, left_s)
                outcome = Outcome.FINISHED
                return vectors
            except StratosError as error:
                outcome = Outcome.FAILED
                cause = Cause.UNREACHABLE if isinstance(error, Unreachable) else cause_of(error)
                if cause is None:
                    raise
                span.set(cause=cause)
                span.fail(cause)
                return cause
            finally:
                self._platform.completions.report(placement.handoff_id, outcome, 0)
                span.set(worker_id=placement.worker.worker_id, outcome=outcome)

    async def _place(self) -> Placement:
        """Ask the router until it answers; a router that is away counts as waiting."""
        with self._span("place") as span:
            return await self._ask_router(span.trace)

    def _span(self, name: str) -> Span:
        tracing, trace = self._platform.tracing, self._spec.trace
        return tracing.span(name, trace, kind=SpanKind.CLIENT, generation_id=self._request_id, attempt=self._number)

    async def _ask_router(self, trace: TraceContext) -> Placement:
        while True:
            try:
                return await self._platform.router.schedule(
                    self._placement_request(trace), timeout_s=self._platform.placement_timeout_s
                )
            except (WorkerLost, Draining):
                await asyncio.sleep(RETRY_WAIT_S)

    async def _prepare_retry(self, cause: Cause, placement: Placement) -> None:
        """Decide whether and where to try again.

        Raises:
            Overloaded: the group ends here.
        """
        self._num_deaths += cause.is_death
        if self._num_deaths >= MAX_DEATHS:
            raise Overloaded(f"{MAX_DEATHS} workers were lost while they ran this request; it is not tried again")
        if cause.excludes_worker:
            self._excluded.add(placement.worker.incarnation)
        self._platform.metrics.recoveries.labels(cause).inc()
        label = self._spec.trace.label(self._request_id)
        _log.info("embeddings %s go on elsewhere: %s at %s", label, cause, placement.worker.worker_id)
        await asyncio.sleep(RETRY_WAIT_S)

    def _placement_request(self, trace: TraceContext) -> PlacementRequest:
        spec, now_s = self._spec, self._platform.clock.now()
        return PlacementRequest(
            request_id=self._request_id,
            attempt=self._number,
            tenant=spec.caller.tenant,
            priority_class=spec.caller.priority_class,
            model_digest=spec.target.model_digest,
            adapter_digest=spec.target.adapter_digest,
            num_prompt_tokens=sum(map(len, spec.inputs)),
            max_tokens=0,
            num_choices=len(spec.inputs),
            work=Work.EMBEDDING,
            excluded_incarnations=frozenset(self._excluded),
            waited_ms=round((now_s - self._started_s) * 1000),
            is_recovery=self._number > 0,
            deadline_ms=max(round((self._deadline_s - now_s) * 1000), 0),
            trace=trace,
        )
