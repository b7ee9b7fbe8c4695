"""The life of one prompt: placement, attempts, journal, recovery.

    1. the router names a decode worker; the session with it is opened when there is none yet
    2. Submit; deltas go from the session straight into the journals of the choices
    3. all choices ended -> the placement is completed
    4. anything else that ends an attempt -> the next attempt resumes from the journals, at the head of its
       queue.  "busy" asks again after a short wait, "draining" goes elsewhere.  A broken session or a hang counts
       as a death, and a request that saw ``MAX_DEATHS`` of them is refused: it may be their cause.  The same
       worker may be chosen again if only its connection was lost.

``run`` is the only task of a generation; it sleeps while tokens flow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stratos.common.errors import Draining, Internal, Overloaded, QueueTimeout, StratosError, WorkerLost
from stratos.common.ids import new_id
from stratos.core.placement import Outcome, Placement, PlacementRequest
from stratos.core.requests.records import ChoiceState, FinishReason, PositionLogprobs, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.trace import NO_TRACE, TraceContext
from stratos.rpc.tracing import Span, SpanKind
from stratos_gateway.generation.attempt import Attempt, Cause
from stratos_gateway.generation.journal import ChoiceJournal, JournalConflict
from stratos_gateway.generation.platform import Platform
from stratos_gateway.models.catalogue import ModelTarget
from stratos_gateway.sessions.records import Receipt, Submission

_log = logging.getLogger(__name__)
MAX_DEATHS = 2
RETRY_WAIT_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """For whom a request runs; all of it comes from the API key."""

    tenant: str
    cache_salt: bytes
    priority_class: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """What to generate, checked and resolved."""

    caller: Caller
    target: ModelTarget
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    trace: TraceContext = NO_TRACE
    continues_prompt: bool = False
    """The output's text goes on with the prompt's; else it stands by itself, as a chat message does."""


class Generation:
    """One prompt and its choices.

    Args:
        spec: what to generate.
        choices: fresh journals, one per choice.
        platform: router, sessions, clock, metrics.
        notify: called when there is news to take, or at the end.
    """

    def __init__(
        self, spec: GenerationSpec, choices: Sequence[ChoiceJournal], platform: Platform, notify: Callable[[], None]
    ) -> None:
        self.request_id = new_id("gen")
        self.spec = spec
        self.choices = tuple(choices)
        self.error: StratosError | None = None
        self.is_ended = False
        self.num_cached_tokens = 0
        self.prompt_logprobs: Sequence[PositionLogprobs] = ()
        """Of the prompt's tokens from the second on; there before the first chunk if they were asked for."""
        self._platform = platform
        self._notify = notify
        self._number = 0
        self._excluded: set[str] = set()
        self._num_deaths = 0
        self._waited_s = 0.0
        self._num_placed_tokens = 0
        self._started_s = platform.clock.now()
        self._token_s: dict[int, float] = {}

    @property
    def num_output_tokens(self) -> int:
        """Tokens emitted so far, over all choices."""
        return sum(len(choice.ids) for choice in self.choices)

    async def run(self) -> None:
        """Generate to the end; afterwards ``error`` says whether it went well."""
        try:
            while not self._is_complete:
                await self._run_attempt()
                self._number += 1
        except StratosError as error:
            self.error = error
        except Exception:
            error_id = new_id("err")
            _log.exception("bug in request %s, reported to the client as %s", self.label, error_id)
            self.error = Internal(f"internal error {error_id}")
        finally:
            if self.error is None and not self._is_complete:
                self.error = Draining("this gateway is leaving; try again")  # cancelled
            self.is_ended = True
            self._notify()

    @property
    def label(self) -> str:
        """The request's name for log lines."""
        return self.spec.trace.label(self.request_id)

    def _span(self, name: str) -> Span:
        tracing, trace = self._platform.tracing, self.spec.trace
        return tracing.span(name, trace, kind=SpanKind.CLIENT, generation_id=self.request_id, attempt=self._number)

    @property
    def _is_complete(self) -> bool:
        return all(choice.is_finished for choice in self.choices)

    async def _run_attempt(self) -> None:
        placement = await self._place()
        self._num_placed_tokens = self.num_output_tokens
        outcome, cause = Outcome.CANCELLED, None
        with self._span("attempt") as span:
            try:
                cause = await self._execute(placement, span.trace)
                outcome = Outcome.FINISHED if cause is None else Outcome.FAILED
            except StratosError:
                outcome = Outcome.FAILED
                raise
            finally:
                self._platform.completions.report(placement.handoff_id, outcome, self.num_output_tokens)
                num_new = self.num_output_tokens - self._num_placed_tokens
                span.set(worker_id=placement.worker.worker_id, outcome=outcome, cause=cause, output_tokens=num_new)
            if cause is not None:
                span.fail(cause)
        if cause is not None:
            await self._prepare_recovery(cause, placement)

    async def _execute(self, placement: Placement, trace: TraceContext) -> Cause | None:
        """Run one attempt; returns why another one is due, if it is."""
        try:
            session = await self._platform.sessions.get(placement.worker)
        except WorkerLost:
            return Cause.UNREACHABLE
        key = RequestKey(self.request_id, self._number)
        attempt = Attempt(self, session, key)
        try:
            session.submit(self._submission(key, placement, trace), attempt)
            return await attempt.wait()
        except WorkerLost:
            return Cause.UNREACHABLE
        finally:
            attempt.close()

    async def _place(self) -> Placement:
        """Ask the router until it answers; a router that is away counts as waiting."""
        with self._span("place") as span:
            return await self._ask_router(span.trace)

    async def _ask_router(self, trace: TraceContext) -> Placement:
        while True:
            asked_s = self._platform.clock.now()
            try:
                return await self._platform.router.schedule(
                    self._placement_request(trace), timeout_s=self._platform.placement_timeout_s
                )
            except (WorkerLost, Draining) as error:
                if self._waited_s > self._platform.placement_timeout_s:
                    raise QueueTimeout("no placement: the router does not answer; try again") from error
                await asyncio.sleep(RETRY_WAIT_S)
            finally:
                self._waited_s += self._platform.clock.now() - asked_s

    async def _prepare_recovery(self, cause: Cause, placement: Placement) -> None:
        """Decide whether, where and when to go on.

        Raises:
            Overloaded, QueueTimeout: the request ends here.
        """
        decode = placement.worker
        if self.num_output_tokens > self._num_placed_tokens:
            self._waited_s = 0.0  # it has run since: its next wait is a new one
        self._num_deaths += cause.is_death
        if self._num_deaths >= MAX_DEATHS:
            raise Overloaded(f"{MAX_DEATHS} workers were lost while they ran this request; it is not tried again")
        if cause.excludes_worker and not (cause is Cause.BROKEN and await self._platform.sessions.is_back(decode)):
            self._excluded.add(decode.incarnation)
        self._platform.metrics.recoveries.labels(cause).inc()
        _log.info("request %s goes on elsewhere: %s at %s", self.label, cause, decode.worker_id)
        if cause in (Cause.BUSY, Cause.UNREACHABLE):
            if self._waited_s > self._platform.placement_timeout_s:
                raise QueueTimeout("no decode worker had room in time; try again")
            self._waited_s += RETRY_WAIT_S
            await asyncio.sleep(RETRY_WAIT_S)

    def _placement_request(self, trace: TraceContext) -> PlacementRequest:
        spec, emitted = self.spec, self.num_output_tokens
        return PlacementRequest(
            request_id=self.request_id,
            attempt=self._number,
            tenant=spec.caller.tenant,
            priority_class=spec.caller.priority_class,
            model_digest=spec.target.model_digest,
            adapter_digest=spec.target.adapter_digest,
            num_prompt_tokens=len(spec.prompt_ids) + emitted,
            max_tokens=max(spec.sampling.max_tokens * len(self.choices) - emitted, 1),
            num_choices=len(self.choices),
            excluded_incarnations=frozenset(self._excluded),
            waited_ms=round(self._waited_s * 1000),
            is_recovery=self._number > 0,
            trace=trace,
        )

    def _submission(self, key: RequestKey, placement: Placement, trace: TraceContext) -> Submission:
        spec = self.spec
        return Submission(
            key=key,
            handoff_id=placement.handoff_id,
            prompt_ids=spec.prompt_ids,
            choices=tuple(
                ChoiceState(index=c.index, emitted_ids=tuple(c.ids), finished=c.is_finished) for c in self.choices
            ),
            sampling=replace(spec.sampling, num_prompt_logprobs=None) if self.prompt_logprobs else spec.sampling,
            seed=spec.seed,
            model_digest=spec.target.model_digest,
            adapter_digest=spec.target.adapter_digest,
            adapter_uri=spec.target.adapter_uri,
            cache_salt=spec.caller.cache_salt,
            tenant=spec.caller.tenant,
            priority_class=spec.caller.priority_class,
            prefill=placement.prefill,
            trace=trace,
        )

    # What an attempt reports; called by the session's reader, so nothing here may wait.

    def accept(
        self,
        index: int,
        offset: int,
        token_ids: Sequence[int],
        logprobs: Sequence[PositionLogprobs],
        finish_reason: FinishReason | None,
    ) -> bool:
        """Journal a delta; returns whether this ended the choice by a stop string.

        Raises:
            JournalConflict: the attempt must end.
        """
        if index >= len(self.choices):
            raise JournalConflict(f"the request has no choice {index}")
        choice = self.choices[index]
        if choice.is_finished:
            return False
        if finish_reason is FinishReason.ABORT:
            raise JournalConflict(f"the worker gave up choice {index}")
        num_new = choice.accept(offset, token_ids, logprobs, finish_reason)
        if num_new:
            self._measure(index, num_new)
        return choice.is_finished and finish_reason is None

    def accept_prompt_logprobs(self, logprobs: Sequence[PositionLogprobs]) -> None:
        """Keep what the first attempt that got so far says; later ones do not ask for it."""
        self.prompt_logprobs = self.prompt_logprobs or tuple(logprobs)

    def accept_receipt(self, receipt: Receipt) -> None:
        """Keep what the worker says about the prompt; a resumed one may find more than the prompt in its cache."""
        self.num_cached_tokens = min(receipt.num_cached_tokens, len(self.spec.prompt_ids))
        self._platform.metrics.observe_receipt(receipt)

    def publish(self) -> bool:
        """Let the client's side take what is new; ``True`` when no choice is left."""
        self._notify()
        return self._is_complete

    def _measure(self, index: int, num_new: int) -> None:
        now_s, metrics = self._platform.clock.now(), self._platform.metrics
        last_s = self._token_s.get(index)
        if last_s is not None:
            metrics.itl.observe((now_s - last_s) / num_new)
        elif not self._token_s:
            metrics.ttft.observe(now_s - self._started_s)
        self._token_s[index] = now_s
