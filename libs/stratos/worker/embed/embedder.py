"""Embedding calls of a worker: each input is a request of the engine, the call waits for all of them.

    run -> adapter held -> every input queued in one go, so that one step takes them together -> vectors in input order

A call ends as a whole: the first error of an input, its cancellation, or the worker's end aborts what is left of it.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack

from stratos.common.errors import StratosError
from stratos.core.requests.embedding import EmbedCall, EmbeddingOutput, EmbedRequest
from stratos.core.requests.records import RequestKey
from stratos.engine.contract.results import StepResult
from stratos.worker.context import WorkerContext

_KEY_PREFIX = "embedding"


class Embedder:
    """Open inputs by engine key. Belongs to the event loop.

    Args:
        context: of the worker; subscribe ``on_step`` to its engine.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._engine = context.engine
        self._adapters = context.adapters
        self._gate = context.gate
        self._waiting: dict[RequestKey, asyncio.Future[EmbeddingOutput]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    async def run(self, call: EmbedCall) -> list[EmbeddingOutput]:
        """Embed all inputs of a call; cancelling it frees everything.

        Raises:
            StratosError: what ended the first input that failed.
        """
        async with AsyncExitStack() as stack:
            if call.terms.adapter.digest:
                await self._adapters.hold(call.terms.adapter, stack)
            self._gate.check_trusted()  # the conviction ends calls that wait, and so does not see this one
            requests = [self._request(call, token_ids) for token_ids in call.inputs]
            loop = asyncio.get_running_loop()
            futures = {request.key: loop.create_future() for request in requests}
            self._waiting |= futures
            stack.callback(self._end, futures)
            await asyncio.gather(*(self._engine.add_embedding(request) for request in requests))
            outputs = list(await asyncio.gather(*futures.values()))
            self._gate.check_trusted()
            return outputs

    def on_step(self, result: StepResult) -> None:
        """Take over what one engine step produced."""
        for output in result.embeddings:
            future = self._waiting.get(output.key)
            if future is not None and not future.done():
                future.set_result(output)
        for key, error in result.errors.items():
            future = self._waiting.get(key)
            if future is not None and not future.done():
                future.set_exception(error)

    def fail_all(self, error: StratosError) -> None:
        """End every open call."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    def _end(self, futures: dict[RequestKey, asyncio.Future[EmbeddingOutput]]) -> None:
        for key, future in futures.items():
            del self._waiting[key]
            if future.done() and not future.cancelled() and future.exception() is None:
                continue
            future.cancel()
            self._engine.abort(key)

    def _request(self, call: EmbedCall, token_ids: tuple[int, ...]) -> EmbedRequest:
        return EmbedRequest(
            key=RequestKey(f"{_KEY_PREFIX}-{next(self._numbers)}", 0),
            token_ids=token_ids,
            pooling=call.pooling,
            normalizes=call.normalizes,
            num_dimensions=call.num_dimensions,
            terms=call.terms,
        )
