"""An answer on its way from its source to the client, and what it took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from stratos.common.errors import StratosError
from stratos.core.ledger.pricing import Times
from stratos_gateway.answering.draft import Draft
from stratos_gateway.openai.chunks import ChoiceChunk, Usage

TakeChunks = Callable[[], list[ChoiceChunk]]
"""Takes what is new, which is told no second time."""
SendToken = Callable[[int, str], bool]
"""Sends one more token of an answer's only choice, which goes on, with its text. False: nothing was done, so it has to
come as a chunk."""


class Output(ABC):
    """The answer of one source to one request; steps read at the end what it took."""

    counts_tokens_live: ClassVar[bool] = False
    """Output tokens are in the metrics about as soon as they come; else they are added at the end."""

    tells_load: ClassVar[bool] = True
    """Its times say how busy the workers are that generate."""

    @property
    @abstractmethod
    def usage(self) -> Usage:
        """Tokens so far, over all prompts and choices, shown or not."""

    @property
    def num_limited_tokens(self) -> int:
        """Tokens that count for the tenant's limits."""
        return self.usage.num_prompt_tokens + self.usage.num_output_tokens

    @property
    def finish_reasons(self) -> tuple[str, ...] | None:
        """Ends of its choices, as far as they are known; ``None`` keeps the answer out of the trace."""
        return None

    def times(self, received_s: float) -> Sequence[Times]:
        """The times of each prompt, where this gateway has measured them.

        Args:
            received_s: when the last byte of the request was there, monotonic seconds.
        """
        return ()

    def sections(self) -> Mapping[str, Any]:
        """Its share of the receipt: who answered, and how (``core.ledger.receipt``)."""
        return {"source": "workers"}

    def drafts(self, error: BaseException | None) -> Sequence[Draft]:
        """Its share of the ledger; empty where nothing is billed.

        Args:
            error: why the answer ended early, ``None`` where it did not.
        """
        return ()


class Chunks(Protocol):
    """Chunks of all choices of a request, as the client is shown them."""

    async def news(self) -> list[ChoiceChunk]:
        """Wait for new chunks; empty once, after the last.

        Raises:
            StratosError: a generation failed.
        """
        ...

    async def finish(self) -> list[ChoiceChunk]:
        """Wait for the end and take one chunk a choice; raises like ``news``."""
        ...

    def end_choice(self, index: int, reason: str) -> None:
        """End a choice from this side."""
        ...


class ChunkOutput(Output, Chunks):
    """The answer of a generation route, before any content policy."""

    send_now: Callable[[TakeChunks], bool] | None = None
    """Sends what it takes from where it comes, while ``news`` is awaited: that saves a turn of the task. An output need
    not call it. False: nothing was taken, so ``news`` has to bring it."""
    send_token: SendToken | None = None
    """The same for single tokens, once the answer has begun and as long as nothing waits to be taken."""
    headers: ClassVar[Sequence[tuple[bytes, bytes]]] = ()
    """Headers of an answer that is this output's from its first byte on."""

    @property
    def is_ended(self) -> bool:
        """Nothing comes behind what ``news`` told last, but perhaps an error; False where that is not known."""
        return False

    def gives_way(self, error: StratosError) -> bool:
        """Whether another source follows after this error, as long as the client was sent nothing but comments."""
        return False

    def confirm(self, chunks: Sequence[ChoiceChunk]) -> None:
        """These have been written to the client."""


class StandingOutput(ChunkOutput):
    """Output for a request whose answer is, or will be, another one's, which pays for it: nothing runs here."""

    tells_load = False

    @property
    def usage(self) -> Usage:
        """No token."""
        return Usage(0)

    async def news(self) -> list[ChoiceChunk]:
        """Nothing comes."""
        return []

    async def finish(self) -> list[ChoiceChunk]:
        """Nothing comes."""
        return []

    def end_choice(self, index: int, reason: str) -> None:
        """Nothing runs that could be ended."""


class NothingLeft(StandingOutput):
    """Output for a client that comes back and has everything: it is told so, and not to come again."""


class AnswerCheck(Protocol):
    """A look at an answer before its client is told of its end."""

    def add(self, choice: int, text: str) -> None:
        """Take a piece of text of a choice that goes on."""

    def require(self, chunks: Iterable[ChoiceChunk]) -> None:
        """Take what is new, before the client is told.

        Raises:
            StratosError: a choice has ended by itself, now or before, and is not what was asked for.
        """

    def passes(self, chunks: Iterable[ChoiceChunk]) -> bool:
        """The same, without raising."""
        ...


async def collected(chunks: Chunks) -> list[ChoiceChunk]:
    """All chunks of an output, one a choice; raises like ``news``."""
    found: list[ChoiceChunk] = []
    while fresh := await chunks.news():
        found += fresh
    return merge_chunks(found)


def merge_chunks(chunks: Iterable[ChoiceChunk]) -> list[ChoiceChunk]:
    """One chunk a choice, in time that grows with their number and no faster."""
    by_choice: dict[int, list[ChoiceChunk]] = {}
    for chunk in chunks:
        by_choice.setdefault(chunk.index, []).append(chunk)
    return [
        replace(
            parts[0],
            text="".join(part.text for part in parts),
            token_ids=[token_id for part in parts for token_id in part.token_ids],
            entries=[entry for part in parts for entry in part.entries],
            finish_reason=parts[-1].finish_reason,
            stop=parts[-1].stop,
            cause=parts[-1].cause,
            continuation=parts[-1].continuation,
            is_open=parts[-1].is_open,
        )
        for parts in by_choice.values()
    ]
