"""One request at the external endpoint: chunks as its stream brings them, in the shape of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import StratosError, WorkerLost
from stratos.core.generation import PrefillPath, Receipt
from stratos_gateway.answering.draft import Draft
from stratos_gateway.answering.output import ChunkOutput, collected
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.overflow.bill import ExternalBill
from stratos_gateway.overflow.events import BadStream

SERVED_ELSEWHERE = (b"x-stratos-served-by", b"external")
"""Header of an answer that an external endpoint has made."""
_MOST_TOKENS = 1 << 31
"""Of one request: what it is charged stays a number that the ledger can add up."""
_REASONS = frozenset({"stop", "length", "content_filter"})


@dataclass(slots=True)
class _Choice:
    text: str = ""
    num_counted: int = 0
    """Characters of the text that ``num_tokens`` is of."""
    num_tokens: int = 0
    is_started: bool = False
    is_ended: bool = False


class ExternalOutput(ChunkOutput):
    """Belongs to one request.

    Args:
        events: of the endpoint.
        num_choices: that were asked for.
        count_tokens: of a text, where the endpoint does not say.
        num_prompt_tokens: as our tokenizer counts them.
        bill: of its request; ``None`` bills nothing.
    """

    headers = (SERVED_ELSEWHERE,)

    def __init__(
        self,
        events: AsyncIterator[dict[str, Any]],
        num_choices: int,
        count_tokens: Callable[[str], int],
        num_prompt_tokens: int,
        bill: ExternalBill | None = None,
    ) -> None:
        self._events = events
        self._choices = [_Choice() for _ in range(num_choices)]
        self._count_tokens = count_tokens
        self._num_own_prompt_tokens = num_prompt_tokens
        self._bill = bill
        self._is_cut = False
        """A choice was ended from this side: the endpoint is not waited for."""
        self._told: Usage | None = None
        self._num_pieces = 0
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_begun(self) -> bool:
        """Something has come."""
        return any(choice.is_started for choice in self._choices)

    @property
    def is_complete(self) -> bool:
        """Every choice has ended."""
        return all(choice.is_ended for choice in self._choices)

    @property
    def usage(self) -> Usage:
        """The endpoint's counts, else those of our tokenizer for what came."""
        if self._told is not None:
            return self._told
        return Usage(self._num_own_prompt_tokens, sum(map(self._num_tokens, self._choices)))

    def _num_tokens(self, choice: _Choice) -> int:
        """Count once for all that ask at the end: it takes the event loop milliseconds."""
        if choice.num_counted != len(choice.text):
            choice.num_tokens, choice.num_counted = self._count_tokens(choice.text), len(choice.text)
        return choice.num_tokens

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """None of them is known."""
        return ()

    def gives_way(self, error: StratosError) -> bool:
        """The endpoint failed: the request waits here."""
        return isinstance(error, WorkerLost)

    def sections(self) -> Mapping[str, Any]:
        """The endpoint answered."""
        return {"source": "external"}

    def drafts(self, error: BaseException | None) -> Sequence[Draft]:
        """One for the request."""
        return [] if self._bill is None else [self._bill.draft(self.usage, self.receipt, error)]

    def draft_so_far(self) -> Draft | None:
        """Draft of the answer until now, a piece of text being a token; ``None`` before it has begun."""
        if self._bill is None or not self.has_begun:
            return None
        return self._bill.begun(self._told or Usage(self._num_own_prompt_tokens, self._num_pieces))

    def draft_given_up(self) -> Draft | None:
        """Draft of an answer that is given here after all: the endpoint's charge; ``None`` where it had not begun."""
        return None if self._bill is None or not self.has_begun else self._bill.given_up(self.usage)

    @property
    def receipt(self) -> Receipt:
        """Receipt of a prompt that was computed elsewhere."""
        return Receipt(
            num_prompt_tokens=self.usage.num_prompt_tokens,
            num_cached_tokens=self.usage.num_cached_tokens,
            prefill_path=PrefillPath.EXTERNAL,
        )

    def fail(self, error: StratosError) -> None:
        """End with this error, unless everything has come already."""
        if not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # known, whether or not anything still waits

    def end_choice(self, index: int, reason: str) -> None:
        """Nothing more of it is taken; with the last one the endpoint is left."""
        self._choices[index].is_ended = self._is_cut = True

    def confirm(self, chunks: Sequence[ChoiceChunk]) -> None:
        """Nothing has to be noted: all that has come is what the client gets."""

    async def news(self) -> list[ChoiceChunk]:
        """The chunks of the next event that has any.

        Raises:
            WorkerLost: the endpoint failed.
        """
        while not self._is_over():
            event = await self._next()
            if event is None:
                if not self.is_complete:
                    raise WorkerLost("the external endpoint ended its stream before its choices")
                return []
            if chunks := self._chunks(event):
                return chunks
        return []

    def _is_over(self) -> bool:
        """All choices have ended, and the endpoint has said what they took, or is not waited for."""
        return (self._is_cut or self._told is not None) and self.is_complete

    async def finish(self) -> list[ChoiceChunk]:
        """One chunk a choice; raises like ``news``."""
        return await collected(self)

    async def _next(self) -> dict[str, Any] | None:
        async def take() -> dict[str, Any] | None:
            return await anext(self._events, None)

        task = asyncio.create_task(take())
        try:
            waiting: set[asyncio.Future[Any]] = {task, self._failed}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._failed.result()
            return await task
        except BadStream as error:
            raise WorkerLost(f"the external endpoint cannot be understood: {error}") from None
        finally:
            task.cancel()

    def _chunks(self, event: dict[str, Any]) -> list[ChoiceChunk]:
        try:
            self._read_usage(event.get("usage"))
            entries: Sequence[dict[str, Any]] = event.get("choices") or []
            return [chunk for entry in entries if (chunk := self._chunk(entry)) is not None]
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            raise WorkerLost("the external endpoint sends events of another form") from None

    def _read_usage(self, usage: Any) -> None:
        if usage:
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            counts = (usage["prompt_tokens"], usage["completion_tokens"], cached)
            if not all(type(count) is int and 0 <= count <= _MOST_TOKENS for count in counts):
                raise ValueError("counts")
            self._told = Usage(*counts)

    def _chunk(self, entry: dict[str, Any]) -> ChoiceChunk | None:
        index, reason = entry["index"], entry.get("finish_reason")
        if type(index) is not int or index < 0:
            raise ValueError("index")
        choice = self._choices[index]
        if choice.is_ended:
            return None
        text = (entry["delta"].get("content") if "delta" in entry else entry.get("text")) or ""
        if not isinstance(text, str):
            raise ValueError("text")
        if not (text or reason):
            return None
        is_first, choice.is_started, choice.is_ended = not choice.is_started, True, bool(reason)
        choice.text += text
        self._num_pieces += bool(text)
        shown = (reason if reason in _REASONS else "stop") if reason else None
        return ChoiceChunk(index=index, text=text, token_ids=[], entries=[], finish_reason=shown, is_first=is_first)
