"""Scores on their way to the client: where a word's log probability is not known yet, it is asked for.

A worker chooses the better one of the two words and tells the most likely tokens beside it. With a model that was
trained to judge the other word is among them. Else the same prompt runs once more with that one as its only possible
output, and the platform pays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from stratos_gateway.answering.output import ChunkOutput
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.answering.whole import send_whole
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.scoring.answers import word_logprobs
from stratos_gateway.scoring.requests import ScoreBody


class ScoreSender:
    """Shared by both routes.

    Args:
        fleet: shared.
    """

    def __init__(self, fleet: FleetAccess) -> None:
        self._fleet = fleet

    def waiting(self, request: ClientRequest[PreparedGeneration]) -> AbstractAsyncContextManager[None]:
        """The client hears nothing before."""
        return nullcontext()

    async def send(self, request: ClientRequest[PreparedGeneration], output: ChunkOutput) -> None:
        """Write all scores at once; raises what the generations raise."""
        prepared = request.prepared
        assert isinstance(prepared.body, ScoreBody), "this route's own"
        chunks = await output.finish()
        await self._complete(request, prepared.body, chunks)
        request.begin_answer(output)
        await send_whole(request, OrjsonResponse(prepared.renderer.body(chunks, output.usage)))

    async def _complete(
        self, request: ClientRequest[PreparedGeneration], body: ScoreBody, chunks: Sequence[ChoiceChunk]
    ) -> None:
        """Add what is not known to the chunks."""
        words = {body.yes_id, body.no_id}
        missing = [(chunk, word) for chunk in chunks for word in words - word_logprobs(chunk).keys()]
        if not missing:
            return
        specs = [_with_word(request, request.prepared.specs[chunk.index], word) for chunk, word in missing]
        async with Fanout(specs, 1, ((), False), request.prepared.tokenizer, self._fleet) as fanout:
            for found in await fanout.finish():
                missing[found.index][0].entries.extend(found.entries)


def _with_word(request: ClientRequest[PreparedGeneration], spec: GenerationSpec, word: int) -> GenerationSpec:
    """Spec of the same prompt with one possible output, which is not billed; under an id of its own, as that of a
    batch's line is fixed."""
    sampling = dataclasses.replace(spec.sampling, allowed_token_ids=(word,), num_logprobs=0)
    return dataclasses.replace(spec, terms=request.dated(spec.terms), sampling=sampling, meter=None, request_id="")
