"""Embedding requests: rows of the ordinary batch whose hidden states are pooled instead of sampled.

Life of a request: ``add`` -> waits and runs in chunks like any prompt -> the runner hands back a pooled part for each
row that contributes -> ``advance`` adds the parts up and, after the last chunk, finishes the vector -> its blocks
are released, and stay in the prefix cache.

Last-token pooling needs one row's result, so it uses the prefix cache.  Mean pooling needs the state of every
token, which the cache does not hold: such a request computes all of its tokens, and starts its sum again when it
was preempted.  Parts are added where they are collected, so the runner keeps no state between steps.
"""

from __future__ import annotations

import numpy as np

from stratos.common.errors import BadRequest, Overloaded
from stratos.core.requests.embedding import EmbeddingOutput, EmbedRequest, PoolingKind
from stratos.core.requests.records import RequestKey
from stratos.engine.contract.plan import PooledRow
from stratos.engine.contract.results import StepResult
from stratos.engine.requests.context import EngineContext
from stratos.engine.sequence import EmbedState, Sequence

MIN_NORM = 1e-12
"""Shorter vectors are not blown up; the bound that ``torch.nn.functional.normalize`` has."""


class EmbeddingTable:
    """Open embedding requests by key."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._sequences: dict[RequestKey, Sequence] = {}

    def __contains__(self, key: RequestKey) -> bool:
        return key in self._sequences

    @property
    def open(self) -> tuple[RequestKey, ...]:
        return tuple(self._sequences)

    def add(self, request: EmbedRequest) -> None:
        """Queue a request. Raises like ``EngineCore.add_embedding``."""
        context = self._context
        self._check(request)
        if len(context.scheduler.waiting) >= context.config.max_num_waiting:
            raise Overloaded("the worker's waiting queue is full")
        sequence = Sequence(
            seq_id=next(context.seq_ids),
            tokens=list(request.token_ids),
            root=context.root(request.terms.adapter.digest, request.terms.cache_salt),
            terms=request.terms,
            computes_all=request.pooling is PoolingKind.MEAN,
            embedding=EmbedState(request),
        )
        self._sequences[request.key] = sequence
        context.scheduler.enqueue(sequence)

    def _check(self, request: EmbedRequest) -> None:
        info = self._context.info
        if not info.embedding_size:
            raise BadRequest("this worker's model cannot embed", param="model", code="unsupported_operation")
        if not request.token_ids:
            raise BadRequest("an input to embed needs at least one token", param="input")
        if request.num_dimensions is not None and not 0 < request.num_dimensions <= info.embedding_size:
            raise BadRequest(f"dimensions must be in [1, {info.embedding_size}]", param="dimensions")
        self._context.check_size(len(request.token_ids))
        self._context.kv.admission.check_input(len(request.token_ids))

    def abort(self, key: RequestKey) -> None:
        """End a request; unknown keys are ignored."""
        sequence = self._sequences.pop(key, None)
        if sequence is not None:
            self._context.scheduler.remove(sequence)

    def advance(self, sequence: Sequence, begin: int, part: PooledRow | None, result: StepResult) -> None:
        """Tokens from ``begin`` on are computed; ``part`` is what the row pooled."""
        state = sequence.embedding
        assert state is not None
        self._context.cache_full_blocks(sequence)
        if state.num_cached_tokens is None:
            state.num_cached_tokens = begin
        if begin == 0:
            state.total = None
        if part is not None:
            values = np.frombuffer(part.values, dtype="<f8")
            state.total = values if state.total is None else state.total + values
        if sequence.num_computed == len(sequence.tokens):
            self._finish(state, result)

    def _finish(self, state: EmbedState, result: StepResult) -> None:
        assert state.total is not None, "the last row of an input always pools"
        request, vector = state.request, state.total
        if request.pooling is PoolingKind.MEAN:
            vector = vector / len(request.token_ids)
        vector = vector[: request.num_dimensions]
        if request.normalizes:
            vector = vector / max(float(np.linalg.norm(vector)), MIN_NORM)
        output = EmbeddingOutput(
            key=request.key, values=vector.astype("<f4").tobytes(), num_cached_tokens=state.num_cached_tokens or 0
        )
        result.embeddings.append(output)
        self.abort(request.key)
