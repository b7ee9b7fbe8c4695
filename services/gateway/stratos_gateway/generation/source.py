"""This platform's workers as a source of answers: a request's generations, their times, and what each is billed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from stratos.common.changed import changed
from stratos.common.errors import StratosError, WaitTooLong
from stratos.core.ledger.entry import OWN_RANK, RequestOutcome
from stratos.core.ledger.pricing import Times
from stratos.core.ledger.receipt import MAX_ITEMS
from stratos.core.ledger.usage import MeterTag
from stratos_gateway.access.concurrency import Admission, End, Place
from stratos_gateway.answering.draft import Draft, charged_counts, is_platform_failure, outcome_of
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.generation.generation import NO_WAITING, Generation, Waiting
from stratos_gateway.generation.journal import ChoiceJournal
from stratos_gateway.generation.succession import MayMove, is_move, moves

MAX_CHOICES = 4
"""Placements of one request whose choice its receipt tells: names of workers are long."""
Patience = Callable[[ClientRequest[PreparedGeneration]], float]
"""Seconds after which a request may be answered elsewhere; 0 where it may not."""


class GeneratedOutput(Fanout):
    """The generations of one request as its answer.

    Args:
        request: of the client.
        fleet: shared.
        waiting: how long, and since when, it may wait for a worker.
        journals: of every prompt's choices, where another gateway began the answer.
    """

    def __init__(
        self,
        request: ClientRequest[PreparedGeneration],
        fleet: FleetAccess,
        waiting: Waiting,
        journals: Sequence[Sequence[ChoiceJournal]] | None = None,
    ) -> None:
        options, tokenizer = request.prepared.options, request.prepared.tokenizer
        specs = [changed(spec, terms=request.dated(spec.terms)) for spec in request.prepared.specs]
        stops, token_of = (options.stop, options.include_stop), request.prepared.token_of
        if waiting.may_move is not None:
            waiting = replace(waiting, may_move=partial(self._may_move, waiting.may_move))
        super().__init__(specs, options.n, stops, tokenizer, fleet, waiting, journals, token_of)
        self._has_fixed_id = bool(request.fixed_id)
        self._may_overflow = waiting.overflow_after_s > 0
        self._plan = request.tenant.plan
        self._is_stream = options.stream
        self._received_s = request.received_s

    @property
    def num_limited_tokens(self) -> int:
        """All that was computed: of an earlier answer that this one goes on from, prompt and output again."""
        return sum(len(g.spec.prompt_ids) for g in self.generations if not g.spec.is_over) + self.num_output_tokens

    def has_begun(self) -> bool:
        """There is some output."""
        return self.usage.num_output_tokens > 0

    def gives_way(self, error: StratosError) -> bool:
        """It would wait too long here, and may go elsewhere; or a newer revision is asked."""
        return is_move(error) or (self._may_overflow and isinstance(error, WaitTooLong))

    def _may_move(self, may_move: MayMove) -> bool:
        """Nothing was computed; what is billed by a fixed id was not even begun."""
        is_begun = self._has_fixed_id and any(g.last_submitted is not None for g in self.generations)
        return not (is_begun or self.num_output_tokens) and may_move()

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """Over all prompts and choices."""
        return tuple(reason for generation in self.generations for reason in generation.transcript.finish_reasons)

    def times(self, received_s: float) -> Sequence[Times]:
        """Times of each prompt, measured here."""
        return [generation.transcript.times(received_s) for generation in self.generations]

    def sections(self) -> Mapping[str, Any]:
        """Each prompt's way through the platform."""
        told = max(1, MAX_CHOICES // len(self.generations))
        shown = [
            generation.section(told if number < MAX_CHOICES else 0)
            for number, generation in enumerate(self.generations[:MAX_ITEMS])
        ]
        return {"source": "workers", "generations": shown}

    def drafts(self, error: BaseException | None) -> Sequence[Draft]:
        """One per prompt; those without a tag are not billed, nor what moved to a newer revision before it began."""
        has_moved = is_move(error)
        return [
            self._draft(generation, generation.spec.meter, error)
            for generation in self.generations
            if generation.spec.meter is not None
            and not (generation.spec.is_over or (has_moved and generation.last_submitted is None))
        ]

    def _draft(self, generation: Generation, tag: MeterTag, error: BaseException | None) -> Draft:
        spec, transcript, outcome = generation.spec, generation.transcript, outcome_of(error)
        num_output = _num_charged(generation, outcome, is_stream=self._is_stream)
        is_left = outcome is RequestOutcome.ABORTED and transcript.receipt is not None
        num_prompt, num_cached = generation.num_told_prompt_tokens, generation.num_told_cached_tokens
        return Draft(
            request_id=generation.request_id,
            tenant=spec.terms.tenant,
            plan=self._plan,
            tag=tag,
            outcome=outcome,
            counts=charged_counts(num_prompt, num_cached, num_output, is_left=is_left, writes=generation.told_writes),
            # Times of an answer that another gateway began are not known here, so no promise is judged by them.
            times=transcript.times(self._received_s) if spec.epoch == 1 else Times(),
            rank=OWN_RANK + spec.epoch - 1,
            waited_us=transcript.waited_us(self._received_s) if outcome is RequestOutcome.ABORTED else None,
            receipt=transcript.receipt,
            last_attempt=generation.last_submitted,
            is_platform_failure=is_platform_failure(error),
            prefix_hashes=generation.prefix_hashes,
        )


class WorkersSource:
    """Runs requests on this platform.

    Args:
        fleet: shared.
        admission: ends them where they lose their place.
        patience: requests that may be answered elsewhere are all it takes, and it gives them up after so long;
            ``None`` takes every request and lets it wait.
    """

    def __init__(self, fleet: FleetAccess, admission: Admission, patience: Patience | None = None) -> None:
        self._fleet = fleet
        self._admission = admission
        self._patience = patience

    def open(self, request: ClientRequest[PreparedGeneration]) -> AbstractAsyncContextManager[GeneratedOutput] | None:
        """Run the generations; they are cancelled at the end."""
        has_waited = request.declined is not None or bool(request.superseded)
        waiting = NO_WAITING
        if has_waited or request.yields_after_s or request.kept_body:
            waiting = Waiting(
                overflow_after_s=request.yields_after_s,
                since_s=request.arrival_s if has_waited else None,
                may_move=partial(moves, request) if request.kept_body else None,
            )
        if self._patience is None:
            return self.resumed(request, waiting)
        after_s = self._patience(request)
        return self._patient(request, replace(waiting, overflow_after_s=after_s)) if after_s else None

    @asynccontextmanager
    async def _patient(
        self, request: ClientRequest[PreparedGeneration], waiting: Waiting
    ) -> AsyncIterator[GeneratedOutput]:
        try:
            async with self.resumed(request, waiting) as output:
                yield output
        except WaitTooLong as error:
            request.declined = error  # nothing was computed or sent

    def ends_by(
        self, request: ClientRequest[PreparedGeneration], end: End, has_begun: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        """Inside, a request that waits for what runs elsewhere ends with its place, as those that run here do."""
        return self._admission.ends_by(request.place, end, has_begun)

    def resumed(
        self,
        request: ClientRequest[PreparedGeneration],
        waiting: Waiting = NO_WAITING,
        journals: Sequence[Sequence[ChoiceJournal]] | None = None,
    ) -> AbstractAsyncContextManager[GeneratedOutput]:
        """Run the generations from where the journals stand; they are cancelled at the end."""
        return _Running(self._admission, request.place, GeneratedOutput(request, self._fleet, waiting, journals))


class _Running(AbstractAsyncContextManager[GeneratedOutput]):
    """Generations that end with a place."""

    def __init__(self, admission: Admission, place: Place, output: GeneratedOutput) -> None:
        self._output, self._ends = output, admission.ends_by(place, output.fail, output.has_begun)

    async def __aenter__(self) -> GeneratedOutput:
        await self._output.__aenter__()
        self._ends.__enter__()
        return self._output

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.__exit__(kind, error, trace)
        await self._output.__aexit__(kind, error, trace)


def _num_charged(generation: Generation, outcome: RequestOutcome, *, is_stream: bool) -> int:
    transcript = generation.transcript
    if outcome is not RequestOutcome.FAILED:
        return transcript.num_new_tokens
    return transcript.num_delivered_tokens if is_stream else 0
