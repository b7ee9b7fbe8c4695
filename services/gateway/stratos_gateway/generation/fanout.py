"""All generations of one HTTP request: several prompts run side by side, and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import reduce
from types import TracebackType
from typing import Self

from stratos.common.errors import StratosError
from stratos.core.requests.continuation import TokenOf, left_open
from stratos.core.requests.pins import NO_WRITES, CacheWrites
from stratos.text.detokenizer import Detokenizer
from stratos.text.stop import StopMatcher
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.answering.output import ChunkOutput
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.generation.generation import NO_WAITING, Generation, Waiting
from stratos_gateway.generation.journal import ChoiceJournal
from stratos_gateway.openai.chunks import ChoiceChunk, Usage

NO_STOPS = StopMatcher(())
"""Holds nothing, so all choices without stop strings have it."""


class AnswerNews:
    """Something may have come, for the one task that waits for it: ``asyncio.Event`` takes three times as long."""

    __slots__ = ("_waiter", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Tell."""
        self.is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Until it is told, unless it was."""
        if not self.is_set:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


class Fanout(ChunkOutput):
    """Runs generations between ``__aenter__`` and ``__aexit__``, which cancels what still runs.

    Choices are numbered ``prompt * n + choice`` towards the client.

    Args:
        specs: one per prompt.
        num_choices: per prompt.
        stop: stop strings; ``include_stop`` keeps them in the text.
        tokenizer: shared.
        fleet: shared.
        waiting: how long, and since when, it may wait for a worker.
        journals: of every prompt's choices, where another gateway began the answer.
        token_of: makes the token with which the answer goes on; ``None`` where it cannot have one.
    """

    counts_tokens_live = True

    def __init__(
        self,
        specs: Sequence[GenerationSpec],
        num_choices: int,
        stop: tuple[Sequence[str], bool],
        tokenizer: Tokenizer,
        fleet: FleetAccess,
        waiting: Waiting = NO_WAITING,
        journals: Sequence[Sequence[ChoiceJournal]] | None = None,
        token_of: TokenOf | None = None,
    ) -> None:
        self._token_of, self._continuations = token_of, fleet.metrics.continuations
        self._news = AnswerNews()
        """Something may have come since the last look."""
        self._is_awaited = False
        """``news`` waits, unless it was left."""
        self._wants_end = False
        """``finish`` waits: single tokens are none of its business."""
        self._told: Usage | None = None
        """Of the end."""
        self._failure: StratosError | None = None
        self._num_choices = num_choices
        self._tasks: list[asyncio.Task[None]] = []
        self.generations = [
            Generation(spec, choices, fleet, self._on_news, waiting, self._pass_on)
            for spec, choices in zip(
                specs, journals or [fresh_journals(spec, num_choices, stop, tokenizer) for spec in specs], strict=True
            )
        ]
        self._only = self.generations[0].transcript.choices[0] if len(specs) == num_choices == 1 else None
        """The one choice of the one prompt, as of nearly every request."""

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self.generations[0].run())]
        if len(self.generations) > 1:
            self._tasks.append(asyncio.create_task(self._run_others()))
        return self

    async def _run_others(self) -> None:
        """One prompt after the other is made ready, with a turn of the event loop for others in between."""
        for generation in self.generations[1:]:
            self._tasks.append(asyncio.create_task(generation.run()))
            await asyncio.sleep(0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running = [task for task in self._tasks if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)
        for generation in self.generations:
            generation.close()

    def confirm(self, chunks: Sequence[ChoiceChunk]) -> None:
        """These have been written to the client."""
        if self._only is not None and len(chunks) == 1:
            self._only.num_delivered += len(chunks[0].token_ids) + chunks[0].num_withheld
            return
        for chunk in chunks:
            position, index = divmod(chunk.index, self._num_choices)
            self.generations[position].transcript.choices[index].num_delivered += (
                len(chunk.token_ids) + chunk.num_withheld
            )

    def fail(self, error: StratosError) -> None:
        """End with this error, unless everything has come already."""
        self._failure = error
        self._news.set()

    @property
    def is_ended(self) -> bool:
        """Every choice has ended; a generation may still fail on its last steps."""
        for generation in self.generations:  # noqa: SIM110 - as in ``Transcript.is_complete``
            if not generation.has_all:
                return False
        return True

    @property
    def _is_over(self) -> bool:
        """Nothing more will come."""
        for generation in self.generations:  # noqa: SIM110 - the same
            if not generation.is_ended:
                return False
        return True

    def _on_news(self) -> None:
        """Send what is new from here where the task of the answer only waits for it. Ends are for the task, which wakes
        for the last of them once, when all is over: that follows at once."""
        for generation in self.generations:  # as in ``Transcript.is_complete``
            if generation.has_all:
                if self.is_ended and not self._is_over:
                    return
                break
        else:
            send_now = self.send_now
            if self._wants_end:
                return
            if send_now is not None and self._is_awaited and not self._news.is_set and send_now(self.take):
                return
        self._news.set()

    def _pass_on(self, offset: int, token_id: int) -> bool:
        """Send a token of the only choice from here, as ``_on_news`` does, and journal it; whether that was done."""
        only, send = self._only, self.send_token
        if only is None or send is None or not self._is_awaited or self._news.is_set:
            return False
        text = only.text_alone(offset, token_id)
        if text is None or not send(token_id, text):
            return False
        only.add_sent(token_id)
        return True

    async def news(self) -> list[ChoiceChunk]:
        """Wait for new chunks; empty once, after the last.

        Raises:
            StratosError: a generation failed; what came before was taken already.
        """
        while True:
            if not self._news.is_set:
                self._is_awaited = True
                await self._news.wait()
                self._is_awaited = False
            self._news.is_set = False
            chunks, ended = self.take(), self._is_over
            if chunks or ended:
                break
            self._raise_failure()
        if ended or self._failure is not None:
            self._news.set()  # for the next call: nothing else sets it
        if not chunks:
            self._raise_failure()
        return chunks

    async def finish(self) -> list[ChoiceChunk]:
        """Wait for the end of all and take everything at once.

        Raises:
            StratosError: a generation failed.
        """
        self._wants_end = True
        while not self._is_over:
            self._news.is_set = False
            self._raise_failure()
            await self._news.wait()
        self._raise_failure()
        return self.take()

    def end_choice(self, index: int, reason: str) -> None:
        """Nothing more is wanted of a choice: it ends here and at its worker."""
        position, choice = divmod(index, self._num_choices)
        self.generations[position].end_choice(choice, reason)
        self._news.set()

    def take(self) -> list[ChoiceChunk]:
        """News of all choices, numbered for the client."""
        if (only := self._only) is None or only.has_cuts:
            chunks = self._take_all()
        else:
            chunk = only.take()
            chunks = [] if chunk is None else [chunk]
            if chunk is None or not (chunk.is_first or chunk.finish_reason):
                return chunks
            if chunk.is_first:
                chunk.prompt_logprobs = self.generations[0].transcript.prompt_logprobs
            if not chunk.is_open:
                return chunks
        if note_continuation(chunks, [g.transcript.choices for g in self.generations], self._token_of):
            self._continuations.labels("issued").inc()
        return chunks

    def _take_all(self) -> list[ChoiceChunk]:
        chunks = []
        for position, generation in enumerate(self.generations):
            for choice in generation.transcript.choices:
                chunk = choice.take()
                while chunk is not None:
                    chunk.index = position * self._num_choices + choice.index
                    if chunk.is_first:
                        chunk.prompt_logprobs = generation.transcript.prompt_logprobs
                    chunks.append(chunk)
                    chunk = choice.take() if choice.has_cuts else None
        return chunks

    @property
    def usage(self) -> Usage:
        """Over all prompts and choices; metrics, limits, receipt and answer ask for that of the end."""
        if self._told is None and self._is_over:
            self._told = self._usage()
        return self._told or self._usage()

    def _usage(self) -> Usage:
        if self._only is not None:
            generation = self.generations[0]
            prompt, cached = generation.num_told_prompt_tokens, generation.num_told_cached_tokens
            return Usage(prompt, generation.transcript.num_new_tokens, cached, generation.told_writes)
        return Usage(
            sum(generation.num_told_prompt_tokens for generation in self.generations),
            sum(generation.transcript.num_new_tokens for generation in self.generations),
            sum(generation.num_told_cached_tokens for generation in self.generations),
            reduce(CacheWrites.plus, (generation.told_writes for generation in self.generations), NO_WRITES),
        )

    @property
    def num_output_tokens(self) -> int:
        """Over all choices."""
        return sum(generation.transcript.num_output_tokens for generation in self.generations)

    def _raise_failure(self) -> None:
        errors: list[StratosError] = [g.error for g in self.generations if g.error is not None]
        if errors:
            raise errors[0]
        if self._failure is not None and not self._is_over:
            raise self._failure


def fresh_journals(
    spec: GenerationSpec, num_choices: int, stop: tuple[Sequence[str], bool], tokenizer: Tokenizer
) -> list[ChoiceJournal]:
    """Journals of one prompt's choices.

    Args:
        spec: the prompt.
        num_choices: of it.
        stop: stop strings, and whether they are shown.
        tokenizer: of the model.
    """
    stops, include = stop
    least = spec.sampling.min_tokens
    is_continued = spec.continues_prompt and tokenizer.has_text(spec.prompt_ids)
    journals = [
        ChoiceJournal(
            index,
            Detokenizer(tokenizer, is_continued=is_continued, shown_ids=spec.shown_ids),
            StopMatcher(stops, include_stop=include, min_tokens=least) if stops else NO_STOPS,
            spec.open_ends,
        )
        for index in range(num_choices)
    ]
    for journal, state in zip(journals, spec.prior, strict=False):  # there are none where it begins
        journal.resume(state)
    return journals


def note_continuation(
    chunks: Sequence[ChoiceChunk], journals: Sequence[Sequence[ChoiceJournal]], token_of: TokenOf | None
) -> bool:
    """Put the token with which the answer goes on to its last chunk, where all has ended, and something can go on.

    Args:
        chunks: of the answer, the newest at the end.
        journals: of every prompt's choices.
        token_of: makes it; ``None`` where the answer cannot have one.

    Returns:
        Whether there is one now.
    """
    if token_of is None or not chunks or chunks[-1].finish_reason is None:
        return False
    choices = [choice for prompt in journals for choice in prompt]
    if not all(choice.is_finished for choice in choices) or not any(choice.is_open for choice in choices):
        return False
    token = token_of([[left_open(c.index, c.ids, is_open=c.is_open) for c in prompt] for prompt in journals])
    if not token:
        _close(chunks, choices)
    chunks[-1].continuation = token
    return bool(token)


def _close(chunks: Sequence[ChoiceChunk], choices: Sequence[ChoiceJournal]) -> None:
    """Let chunks end for good, with what was held back."""
    for chunk in chunks:
        choice = choices[chunk.index]
        if chunk.is_open and choice.is_open:
            chunk.text += choice.close()
            chunk.is_open, chunk.finish_reason, chunk.stop = False, choice.finish_reason, choice.matched_stop
