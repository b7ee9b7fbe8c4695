"""A decode worker's side of one session, as far as gateways can tell."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import grpc.aio

from stratos.api.worker.v1 import decode_pb2
from stratos.common.errors import NotFound
from stratos.core.requests.records import RequestKey
from stratos.rpc.errors import to_error_detail


class FakeOutputSession:
    """Counts Submits, and says messages one after another.

    Args:
        context: of the call.
        has_columns: both sides know columns.
    """

    def __init__(self, context: Any, *, has_columns: bool) -> None:
        self.context = context
        self.has_columns = has_columns
        self.num_submits = 0
        self.num_in_columns = 0
        """Tokens that were said in columns."""
        self.submit_of: dict[RequestKey, int] = {}
        self._write_lock = asyncio.Lock()
        self._misses: list[asyncio.Task[None]] = []
        self._writes: set[asyncio.Task[None]] = set()

    def count_submit(self, message: decode_pb2.SessionRequest) -> None:
        self.num_submits += 1
        assert message.submit_number == self.num_submits
        if self.has_columns:
            self.submit_of[RequestKey(message.submit.request_id, message.submit.attempt)] = message.submit_number

    def miss(self, attach: decode_pb2.Attach) -> None:
        """Say that nothing is kept for those that take over."""
        error = to_error_detail(NotFound("not here"))
        output = decode_pb2.RequestOutput(request_id=attach.request_id, attempt=attach.attempt, error=error)
        outputs = decode_pb2.StepOutputs(num_submits=self.num_submits, outputs=[output])
        self._misses.append(asyncio.create_task(self.write(decode_pb2.SessionResponse(step_outputs=outputs))))

    async def write(self, message: decode_pb2.SessionResponse) -> None:
        """Whole also where its request is cancelled in its midst: grpc goes on with it, and takes one at a time."""
        self._writes.add(writing := asyncio.create_task(self._write(message)))
        writing.add_done_callback(self._writes.discard)
        await asyncio.shield(writing)

    async def _write(self, message: decode_pb2.SessionResponse) -> None:
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.UsageError):
            async with self._write_lock:
                await self.context.write(message)


def tell_logprobs(delta: decode_pb2.ChoiceDelta, token: int, logprobs: Sequence[float], num_top: int) -> None:
    """Add the log probabilities of one place, as an engine ranks them."""
    entry, order = delta.logprobs.add(), sorted(range(len(logprobs)), key=lambda t: (-logprobs[t], t))
    entry.sampled.token_id, entry.sampled.logprob, entry.sampled.rank = token, logprobs[token], order.index(token) + 1
    for rank, top in enumerate(order[:num_top]):
        entry.top.add(token_id=top, logprob=logprobs[top], rank=rank + 1)


def prompt_logprobs(submit: decode_pb2.Submit, shift: float) -> list[decode_pb2.PositionLogprobs]:
    """Minus the place of each token from the second on; the most likely ones have the ids right after it."""
    entries = []
    for place, token in list(enumerate(submit.prompt_ids))[1:]:
        entry = decode_pb2.PositionLogprobs()
        entry.sampled.token_id, entry.sampled.logprob, entry.sampled.rank = token, shift - place, 3
        for rank in range(submit.sampling.num_prompt_logprobs):
            entry.top.add(token_id=(token + 1 + rank) % 4096, logprob=-0.25 - rank, rank=1 + rank)
        entries.append(entry)
    return entries
