"""Generated output, filtered by the tenant's content policy."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from stratos_gateway.answering.output import Chunks, collected
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.policies.choice_screen import FILTERED, ChoiceScreen
from stratos_gateway.policies.screen import Screen


class ScreenedOutput(Chunks):
    """Shows what the policy lets out; a choice with a hit ends there.

    Args:
        output: of the generations.
        screen: of the request.
    """

    def __init__(self, output: Chunks, screen: Screen) -> None:
        self._output = output
        self._choices: defaultdict[int, ChoiceScreen] = defaultdict(partial(ChoiceScreen, screen))
        self._replacement = screen.policy.replacement

    async def news(self) -> list[ChoiceChunk]:
        """Wait until there is something to show."""
        while chunks := await self._output.news():
            if shown := await self._screened(chunks):
                return shown
        return []

    async def finish(self) -> list[ChoiceChunk]:
        """Everything at once; of a choice with a hit nothing but the replacement."""
        return [
            replace(chunk, text=self._replacement) if chunk.finish_reason == FILTERED else chunk
            for chunk in await collected(self)
        ]

    def end_choice(self, index: int, reason: str) -> None:
        """Pass it on."""
        self._output.end_choice(index, reason)

    async def _screened(self, chunks: Sequence[ChoiceChunk]) -> list[ChoiceChunk]:
        shown = await asyncio.gather(*(self._choices[chunk.index].feed(chunk) for chunk in chunks))
        for chunk in chunks:
            if self._choices[chunk.index].is_hit:
                self._output.end_choice(chunk.index, FILTERED)
        return [chunk for chunk in shown if chunk is not None]
