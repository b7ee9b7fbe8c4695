"""What a generation says, with its tenant's policy in between."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from stratos_gateway.generation.journal import ChoiceChunk
from stratos_gateway.policies.choice_screen import FILTERED, ChoiceScreen
from stratos_gateway.policies.screen import Screen


class Output(Protocol):
    """Chunks of all choices of a request."""

    async def news(self) -> list[ChoiceChunk]:
        """Wait for news and take them; empty only at the end.

        Raises:
            StratosError: a generation failed.
        """
        ...

    async def finish(self) -> list[ChoiceChunk]:
        """Wait for the end and take one chunk a choice; raises like ``news``."""
        ...

    def end_choice(self, index: int, reason: str) -> None:
        """Nothing more is wanted of a choice."""
        ...


class Generated(Output, Protocol):
    """The same, before any policy, with what it took."""

    def confirm(self, chunks: Sequence[ChoiceChunk]) -> None:
        """These have been written to the client."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """Over all prompts."""
        ...

    @property
    def num_output_tokens(self) -> int:
        """Over all choices, whether they were shown or not."""
        ...

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that did not have to be computed."""
        ...


async def collected(output: Output) -> list[ChoiceChunk]:
    """All news of an output, one chunk a choice; raises like ``news``."""
    found: dict[int, ChoiceChunk] = {}
    while chunks := await output.news():
        for chunk in chunks:
            old = found.get(chunk.index)
            found[chunk.index] = chunk if old is None else _joined(old, chunk)
    return list(found.values())


class ScreenedOutput(Output):
    """Shows what the policy lets out; a choice with a hit ends there.

    Args:
        output: of the generations.
        screen: of the request.
    """

    def __init__(self, output: Output, screen: Screen) -> None:
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


def _joined(old: ChoiceChunk, new: ChoiceChunk) -> ChoiceChunk:
    return replace(
        old,
        text=old.text + new.text,
        token_ids=[*old.token_ids, *new.token_ids],
        entries=[*old.entries, *new.entries],
        finish_reason=new.finish_reason,
    )
