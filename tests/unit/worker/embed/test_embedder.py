"""What a call meets whose worker is convicted while its adapter is loaded, or after its vectors are computed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stratos.common.errors import Draining
from stratos.core.adapter import AdapterRef
from stratos.core.requests.embedding import EmbeddingOutput
from stratos.worker.drain_gate import DrainGate
from stratos.worker.embed.embedder import Embedder


class Bench:
    """An embedder whose engine and adapters do what a test says."""

    def __init__(self, adapter: str) -> None:
        self.gate, self.num_added = DrainGate(), 0
        context: Any = SimpleNamespace(engine=self, adapters=self, gate=self.gate)
        self.embedder = Embedder(context)
        terms = SimpleNamespace(adapter=AdapterRef(digest=adapter))
        self.call: Any = SimpleNamespace(
            inputs=((1,),), pooling=None, normalizes=False, num_dimensions=None, terms=terms
        )

    async def hold(self, adapter: AdapterRef, stack: object) -> None:
        self.gate.is_convicted = True

    async def add_embedding(self, request: Any) -> None:
        self.num_added += 1
        output = EmbeddingOutput(key=request.key, values=b"", num_cached_tokens=0)
        self.embedder.on_step(SimpleNamespace(embeddings=(output,), errors={}))  # type: ignore[arg-type]

    def abort(self, key: object) -> None:
        return


async def test_a_call_whose_adapter_came_after_the_conviction_ends() -> None:
    bench = Bench("digest")
    with pytest.raises(Draining):
        await asyncio.wait_for(bench.embedder.run(bench.call), 30)
    assert not bench.num_added
    assert not len(bench.embedder)


async def test_vectors_that_are_computed_stay_here_after_the_conviction() -> None:
    bench = Bench("")
    assert len(await bench.embedder.run(bench.call)) == 1
    bench.gate.is_convicted = True
    with pytest.raises(Draining):
        await bench.embedder.run(bench.call)
