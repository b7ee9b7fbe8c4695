"""One request at the external endpoint: chunks as its stream brings them, in the shape of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stratos.common.clock import Clock
from stratos.common.errors import StratosError, WorkerLost
from stratos.core.generation import PrefillPath, Receipt
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.itls import ItlCounter
from stratos.core.ledger.pricing import Times
from stratos_gateway.answering.draft import Draft
from stratos_gateway.answering.output import ChunkOutput, collected
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.overflow.call import ExternalCall
from stratos_gateway.overflow.choice import ExternalChoice
from stratos_gateway.overflow.events import BadStream

SERVED_ELSEWHERE = (b"x-stratos-served-by", b"external")
"""Header of an answer that an external endpoint has made."""
_MOST_TOKENS = 1 << 31
"""Of one request: what it is charged stays a number that the ledger can add up."""
_REASONS = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length"), "length"),
    "content_filter": "content_filter",
}
"""Ends of a whole choice, in the words of endpoints; others, such as "error" and "abort", are failures."""


class ExternalOutput(ChunkOutput):
    """Belongs to one request.

    Args:
        events: of the endpoint.
        num_choices: that were asked for.
        call: what was asked for, which the endpoint may ignore.
        clock: monotonic.
    """

    headers = (SERVED_ELSEWHERE,)

    def __init__(
        self,
        events: AsyncIterator[dict[str, Any]],
        num_choices: int,
        call: ExternalCall,
        clock: Clock,
    ) -> None:
        self._events = events
        self._choices = [ExternalChoice(call) for _ in range(num_choices)]
        self._call = call
        self._clock = clock
        self._itls = ItlCounter(call.promised_itl_us)
        self._is_cut = False
        """A choice was ended from this side: the endpoint is not waited for."""
        self._is_beyond = False
        """The endpoint went on beyond what was asked for."""
        self._told: Usage | None = None
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
        """The endpoint's counts, else those of our tokenizer for what came; see ``_within`` for one that was cut."""
        return self._within(self._took)

    @property
    def _took(self) -> Usage:
        """Tokens that the endpoint charges for, as far as they are known."""
        if self._told is not None:
            return self._told
        return Usage(self._call.num_prompt_tokens, sum(map(self._num_tokens, self._choices)))

    def _within(self, usage: Usage) -> Usage:
        """Bound an answer that was cut since it went on beyond ``max_tokens``: no more than was asked for."""
        if not self._is_beyond:
            return usage
        most = self._call.max_tokens * len(self._choices)
        return replace(usage, num_output_tokens=min(usage.num_output_tokens, most))

    def _num_tokens(self, choice: ExternalChoice) -> int:
        """Count once for all that ask at the end: it takes the event loop milliseconds."""
        if choice.num_tokens is None:
            choice.num_tokens = self._call.count_tokens(choice.text)
        return choice.num_tokens

    def times(self, received_s: float) -> Sequence[Times]:
        """The times as they were measured here."""
        started = [choice for choice in self._choices if choice.first_s is not None]
        first_s = min((choice.first_s for choice in started if choice.first_s is not None), default=None)
        if first_s is None:
            return [Times()]
        itls = self._itls.itls()
        gaps_s = sum(choice.last_s - (choice.first_s or 0.0) for choice in started)
        ttft_us = round(1e6 * max(0.0, first_s - received_s))
        return [Times(ttft_us=ttft_us, itl_us=round(1e6 * gaps_s / itls.num) if itls.num else None, itls=itls)]

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
        if (bill := self._call.bill) is None:
            return []
        draft = bill.ended(self.usage, self._took, error)
        (times,) = self.times(self._call.received_s)
        is_left = draft.outcome is RequestOutcome.ABORTED and times.ttft_us is None
        waited_us = round(1e6 * max(0.0, self._clock.now() - self._call.received_s)) if is_left else None
        return [replace(draft, receipt=self.receipt, times=times, waited_us=waited_us)]

    def draft_so_far(self) -> Draft | None:
        """Draft of the answer until now, a piece of text being a token; ``None`` before it has begun."""
        if self._call.bill is None or not self.has_begun:
            return None
        num_pieces = sum(len(choice.parts) for choice in self._choices)
        took = self._told or Usage(self._call.num_prompt_tokens, num_pieces)
        return self._call.bill.begun(self._within(took), took)

    def draft_given_up(self) -> Draft | None:
        """Draft of an answer that is given here after all: the endpoint's charge; ``None`` where it had not begun."""
        bill = self._call.bill
        return None if bill is None or not self.has_begun else bill.given_up(self._took)

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
            await self._passed()
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

    async def _passed(self) -> None:
        """Wait at the gate, behind which this request may have lost its place."""
        if (gate := self._call.gate) is not None and gate.is_shut:
            await gate.opened()
            if self._failed.done():
                self._failed.result()

    def _chunks(self, event: dict[str, Any]) -> list[ChoiceChunk]:
        try:
            entries: Sequence[dict[str, Any]] = event.get("choices") or []
            chunks = [chunk for entry in entries if (chunk := self._chunk(entry)) is not None]
            self._read_usage(event.get("usage"))
            return chunks
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            raise WorkerLost("the external endpoint sends events of another form") from None

    def _read_usage(self, usage: Any) -> None:
        """Take the counts of a whole answer: some endpoints tell others before, of what there is by then."""
        if usage and self.is_complete:
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
        text, is_cut = choice.take(text)
        if text:
            self._measure(choice)
        self._is_beyond |= is_cut
        self._is_cut |= is_cut
        is_first, choice.is_started = not choice.is_started, True
        shown = "length" if is_cut else _REASONS[reason] if reason else None
        choice.is_ended = shown is not None
        return ChoiceChunk(index=index, text=text, token_ids=[], entries=[], finish_reason=shown, is_first=is_first)

    def _measure(self, choice: ExternalChoice) -> None:
        now_s = self._clock.now()
        if choice.first_s is None:
            choice.first_s = now_s
        else:
            self._itls.add(now_s - choice.last_s, 1)
        choice.last_s = now_s
