"""A prefill worker that embeds as its test says."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stratos.api.worker.v1 import embed_pb2, embed_pb2_grpc
from stratos.common.errors import StratosError
from stratos.core.placement import WorkerRole
from stratos.rpc.serving.interceptors import _abort
from tests.support.fakes.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually


@dataclass
class ScriptedEmbedder(ScriptedWorker, embed_pb2_grpc.EmbedServiceServicer):
    """Answers the number of tokens of each input; faults are fields."""

    role = WorkerRole.PREFILL
    errors: list[StratosError] = field(default_factory=list)
    may_fail: Callable[[], bool] = lambda: True
    """An error is answered once this holds."""
    dies: bool = False
    blocks: bool = False
    calls: list[embed_pb2.EmbedRequest] = field(default_factory=list)
    num_cancelled: int = 0

    async def start(self) -> None:
        self.listen()
        embed_pb2_grpc.add_EmbedServiceServicer_to_server(self, self.server)
        await self.server.start()

    async def Embed(self, request: embed_pb2.EmbedRequest, context: Any) -> embed_pb2.EmbedResponse:
        self.calls.append(request)
        if self.errors:
            await eventually(self.may_fail, "the error may be answered")
            await _abort(context, self.errors.pop(0))
        if self.dies:
            await self.stop()
        if self.blocks:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.num_cancelled += 1
                raise
        vectors = [array("f", [len(entry.token_ids)]).tobytes() for entry in request.inputs]
        return embed_pb2.EmbedResponse(embeddings=[embed_pb2.Embedding(values=v) for v in vectors])
