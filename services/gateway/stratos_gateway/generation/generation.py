"""The life of one prompt: placement, attempts, journal, recovery.

    1. the router names a decode worker; the session with it is opened when there is none yet
    2. Submit; deltas go from the session straight into the journals of the choices
    3. all choices ended -> the placement is completed
    4. anything else that ends an attempt -> the next attempt resumes from the journals (``recovery`` says where and
       when), or the request ends

``run`` is the only task of a generation; it sleeps while tokens flow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from stratos.common.bugs import report_bug
from stratos.common.changed import record
from stratos.common.errors import DeadlinePassed, Draining, FeatureUnavailable, QueueTimeout, StratosError, WorkerLost
from stratos.common.ids import new_id
from stratos.core.features import required_features
from stratos.core.generation import Submission
from stratos.core.ledger.receipt import MAX_ITEMS
from stratos.core.ledger.usage import MeterTag
from stratos.core.placement import Outcome, Placement, PlacementRequest, WorkerRef
from stratos.core.requests.pins import NO_WRITES, CacheWrites
from stratos.core.requests.records import EPOCH_ATTEMPTS, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.trace import TraceContext
from stratos_gateway.access.task_end import EndsLate
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.generation.attempt import Attempt
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.generation.journal import ChoiceJournal
from stratos_gateway.generation.recovery import AttemptLoss, Attempts, Cause
from stratos_gateway.generation.succession import MayMove
from stratos_gateway.generation.trail import AttemptTrail, drafts_section, pins_section, prompt_section
from stratos_gateway.generation.transcript import PassOn, Transcript, notify_nothing, pass_nothing
from stratos_gateway.sessions.session import WorkerSession

_log = logging.getLogger(__name__)


@record(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Rules of a request's wait for a worker."""

    overflow_after_s: float = 0.0
    """It may be answered elsewhere, and does not wait longer than that here; 0 lets it wait."""
    since_s: float | None = None
    """It has waited since then, monotonic; ``None`` is now."""
    may_move: MayMove | None = None
    """Whether a newer revision of its model may be asked instead; ``None`` where none may."""


NO_WAITING = Waiting()
MAX_SOURCES = 2
"""A worker takes no more; those of all versions know a decode worker among them for one that computes nothing."""


class Generation:
    """One prompt and its choices.

    Args:
        spec: what to generate.
        choices: fresh journals, one per choice.
        fleet: router, sessions, clock, metrics.
        notify: called when there is something to take, or at the end.
        waiting: how long, and since when, it may wait.
        pass_on: sends one more token, as ``Transcript`` has it.
    """

    def __init__(
        self,
        spec: GenerationSpec,
        choices: Sequence[ChoiceJournal],
        fleet: FleetAccess,
        notify: Callable[[], None],
        waiting: Waiting = NO_WAITING,
        pass_on: PassOn = pass_nothing,
    ) -> None:
        self.request_id = spec.request_id or new_id("gen")
        self.spec = spec
        self.num_told_prompt_tokens = spec.num_told_prompt_tokens
        self.transcript = Transcript(
            choices, len(spec.prompt_ids), spec.terms, fleet, notify, spec.promised_itl_us, spec.model, pass_on
        )
        self.prefix_hashes = ""
        """Of the prompt, for its entry in the ledger, once it has ended with some output."""
        self.error: StratosError | None = None
        self.is_ended = False
        self.trail: list[AttemptTrail] = []
        """Its attempts so far, of which the first ``MAX_ITEMS`` are kept."""
        self.last_submitted: int | None = None
        """Attempt that a worker last got."""
        self.runs_at: Placement | None = None
        """Its place."""
        self._fleet = fleet
        self._notify = notify
        self._attempt: Attempt | None = None
        self._waiting = waiting
        self._num_prior_tokens = spec.num_prior_tokens
        self._made: Attempts | None = None
        self._placed: tuple[EngineRequest, frozenset[str]] | None = None
        """Request of the first attempt and its features, as the router was asked."""

    @property
    def _attempts(self) -> Attempts:
        if self._made is None:
            self._made = self._make_attempts()
        return self._made

    def _make_attempts(self) -> Attempts:
        """Called by the first turn of ``run``: digest and names of a long prompt take their time."""
        return Attempts(
            self._fleet,
            self._placement_request(self._waiting),
            max_wait_s=self._fleet.placement_timeout_s,
            reconnects=True,
            queued_since_s=self._waiting.since_s,
            first_number=self._first_number,
            may_move=self._waiting.may_move,
        )

    @property
    def _first_number(self) -> int:
        return (self.spec.epoch - 1) * EPOCH_ATTEMPTS

    async def run(self) -> None:
        """Generate to the end; afterwards ``error`` says whether it went well."""
        end_s, now_s = self.spec.terms.end_s, self._fleet.clock.now()
        try:
            with EndsLate(None if end_s is None else end_s - now_s, self._too_late):
                if (begun := self.spec.runs_at) is not None and await self._is_there(begun):
                    await self._run_attempt(begun)
                while not self.transcript.is_complete:
                    await self._run_attempt()
        except StratosError as error:
            self.error = error
        except Exception:
            self.error = report_bug(_log, f"in request {self._attempts.label}")
        finally:
            if self.error is None and not self.transcript.is_complete:
                self.error = Draining("this gateway is leaving; try again")  # cancelled
            self.is_ended = True
            self.transcript.fold()
            self._notify()
            self._hash_prompt()

    def _hash_prompt(self) -> None:
        """Hash what its entry tells of the prompt: each generation on a turn of its own, behind its last token."""
        if self.spec.meter is not None and self.num_told_prompt_tokens and self.transcript.num_new_tokens:
            self.prefix_hashes = self._fleet.prefix_hashes.of(self.spec)

    def close(self) -> None:
        """Tell nothing more to the answer, which has it and asks it for its usage and its trail."""
        self._notify = notify_nothing
        self.transcript.close()

    def end_choice(self, index: int, reason: str) -> None:
        """End a choice from this side; what has come of it counts."""
        choice = self.transcript.choices[index]
        if not choice.is_finished:
            choice.end(reason)
            if self._attempt is not None:
                self._attempt.end_choice(index)

    @property
    def has_all(self) -> bool:
        """Every choice has ended, or nothing more comes."""
        return self.is_ended or self.transcript.is_complete

    @property
    def num_told_cached_tokens(self) -> int:
        """Tokens of a prefix cache among those of the prompt that are told."""
        return min(self.transcript.num_cached_tokens, self.num_told_prompt_tokens)

    @property
    def told_writes(self) -> CacheWrites:
        """Tokens of the prompt that are told and whose KV is kept since this request."""
        receipt = self.transcript.receipt
        return NO_WRITES if receipt is None or not self.num_told_prompt_tokens else receipt.writes

    def _note_attempt(self, attempt: AttemptTrail) -> None:
        if len(self.trail) < MAX_ITEMS:
            self.trail.append(attempt)

    def section(self, num_choices_told: int = 0) -> dict[str, Any]:
        """The prompt's way through the platform so far, for the request's receipt.

        Args:
            num_choices_told: attempts of which it says what their placements were chosen from.
        """
        receipt, num_prompt_tokens = self.transcript.receipt, len(self.spec.prompt_ids)
        section = {
            "id": self.request_id,
            "prompt_tokens": num_prompt_tokens,
            "output_tokens": self.transcript.num_new_tokens,
            "seed": self.spec.seed,
            "adapter_digest": self.spec.terms.adapter.digest,
            "num_attempts": self._attempts.number % EPOCH_ATTEMPTS + 1,
            "attempts": [
                attempt.to_json(tells_choice=number < num_choices_told) for number, attempt in enumerate(self.trail)
            ],
        }
        if receipt is not None:
            section |= prompt_section(receipt, num_prompt_tokens, is_exact=self.transcript.is_exact)
            section |= pins_section(self.spec.terms.pins, receipt, self.told_writes)
        return section | drafts_section(self.transcript.drafts)

    def _too_late(self) -> StratosError:
        if self.transcript.num_new_tokens:
            return DeadlinePassed()
        return QueueTimeout("the request's deadline passed before its first token")

    async def _is_there(self, begun: Placement) -> bool:
        return await self._fleet.sessions.is_back(begun.worker, self._fleet.takeover_timeout_s)

    async def _run_attempt(self, begun: Placement | None = None) -> None:
        """Run an attempt; ``begun`` is where an older owner's runs, which goes on as this one."""
        attempts, num_before = self._attempts, self.transcript.num_new_tokens
        placement = begun or await attempts.place(num_before)
        if begun is None:
            self._fleet.prefix_names.learn(self.spec.model_digest, placement)
        outcome, loss = Outcome.CANCELLED, None
        with attempts.span("attempt") as span:
            try:
                loss = await self._execute(placement, span.trace, is_taken_over=begun is not None)
                outcome = _outcome_of(loss)
                if loss is not None:
                    span.set(cause=loss.cause)
                    span.fail(loss.cause)
                    await attempts.judge(loss, placement)
            except StratosError:
                outcome = Outcome.FAILED
                raise
            finally:
                num_after = self.transcript.num_new_tokens
                self._fleet.routers.report(placement, outcome, num_after)
                num_new = num_after - num_before
                if span.is_recording:
                    span.set(worker_id=placement.worker.worker_id, outcome=outcome, output_tokens=num_new)
                self._note_attempt(AttemptTrail(placement, outcome, None if loss is None else loss.cause, num_new))
        if loss is not None:
            await attempts.prepare_next(loss, placement)

    async def _execute(self, placement: Placement, trace: TraceContext, *, is_taken_over: bool) -> AttemptLoss | None:
        """Run one attempt; returns why another one is due, if it is."""
        if self.transcript.is_complete:  # its choices were ended while it waited
            return None
        try:
            session = await self._fleet.sessions.get(placement.worker)
        except WorkerLost:
            return AttemptLoss(cause=Cause.UNREACHABLE)
        attempts, num_before = self._attempts, self.transcript.num_output_tokens
        key, on_settled = RequestKey(self.request_id, attempts.number), partial(attempts.settle, placement)
        attempt = self._attempt = Attempt(
            self.transcript, session, key, attempts, on_settled, is_taken_over=is_taken_over
        )
        try:
            if is_taken_over:
                self._take_over(session, key, attempt)
            else:
                session.submit(self._submission(placement, trace), attempt)
            self.runs_at, self.last_submitted = placement, key.attempt
            cause = await attempt.wait()
        except WorkerLost:
            cause = Cause.UNREACHABLE
        except FeatureUnavailable:
            cause = Cause.UNSUPPORTED
        finally:
            self._attempt = None
            attempt.close()
        if cause is None:
            return None
        has_progressed = self.transcript.num_output_tokens > num_before
        return AttemptLoss(
            cause=cause,
            has_progressed=has_progressed,
            is_settled=attempt.is_settled or is_taken_over,
            was_taken=attempt.was_taken,
            step=session.step,
        )

    def _take_over(self, session: WorkerSession, key: RequestKey, attempt: Attempt) -> None:
        """Go on with what runs there; choices that ended here may not have heard of it."""
        choices = self.transcript.choices
        num_received = {choice.index: len(choice.ids) for choice in choices if not choice.is_finished}
        session.take_over(key, num_received, attempt, is_metered=self.spec.meter is not None)
        if ended := {choice.index: len(choice.ids) for choice in choices if choice.is_finished}:
            session.cancel(key, ended)

    def _placement_request(self, waiting: Waiting) -> PlacementRequest:
        spec, num_choices, num_prior = self.spec, len(self.transcript.choices), self._num_prior_tokens
        asked = self._engine_request(spec.sampling, self._first_number)
        features = required_features(asked)
        if num_choices == 1 and not self.transcript.prompt_logprobs:
            self._placed = asked, features  # nothing of it changes until it is submitted
        return PlacementRequest(
            request_id=self.request_id,
            terms=spec.terms.for_router(),
            model_digest=spec.model_digest,
            num_prompt_tokens=len(spec.prompt_ids) + num_prior,
            max_output_tokens_total=max(1, spec.sampling.max_tokens * num_choices - num_prior),
            num_choices=num_choices,
            prompt_digest=self._prompt_digest() if spec.can_be_convicted else b"",
            trace=spec.trace,
            required_features=features,
            block_hashes=self._fleet.prefix_names.names(spec.terms, spec.model_digest, spec.prompt_ids),
            session_key=spec.session_key,
            zone=self._fleet.zone,
            region=self._fleet.region,
            overflow_after_ms=round(waiting.overflow_after_s * 1000),
        )

    def _prompt_digest(self) -> bytes:
        spec = self.spec
        return self._fleet.prompt_digests.of(spec.terms, spec.model_digest, [spec.prompt_ids])

    def _submission(self, placement: Placement, trace: TraceContext) -> Submission:
        spec, (request, features) = self.spec, self._request_now()
        return Submission(
            request=request,
            model_digest=spec.model_digest,
            handoff_id=placement.handoff_id,
            prefill=self._sources(placement),
            trace=trace,
            required_features=features,
            meter=self._meter(),
        )

    def _request_now(self) -> tuple[EngineRequest, frozenset[str]]:
        """The request as the attempt under way submits it, and features that it needs."""
        number, placed, sampling = self._attempts.number, self._placed, self.spec.sampling
        if placed is not None and placed[0].key.attempt == number:
            return placed
        if self.transcript.prompt_logprobs:
            sampling = replace(sampling, num_prompt_logprobs=None)
        request = self._engine_request(sampling, number)
        return request, required_features(request)

    def _sources(self, placement: Placement) -> tuple[WorkerRef, ...]:
        """Where the KV comes from: first a worker that has it and leaves, which gives what it has."""
        holder = self._attempts.holder
        if holder is None or holder.incarnation == placement.worker.incarnation:
            return placement.prefill
        return (holder, *placement.prefill)[:MAX_SOURCES]

    def _meter(self) -> MeterTag | None:
        """A resumed attempt knows what the first one found in a cache: the prompt is charged once."""
        tag = self.spec.meter
        if tag is None:
            return None
        num_cached, num_prior = self.transcript.num_cached_tokens, self._num_prior_tokens
        if (num_cached, num_prior) == (tag.num_cached_tokens, tag.num_prior_tokens):
            return tag
        return replace(tag, num_cached_tokens=num_cached, num_prior_tokens=num_prior)

    def _engine_request(self, sampling: SamplingParams, attempt: int) -> EngineRequest:
        spec = self.spec
        return EngineRequest(
            key=RequestKey(self.request_id, attempt),
            prompt_ids=spec.prompt_ids,
            choices=self.transcript.states(),
            sampling=sampling,
            seed=spec.seed,
            terms=replace(spec.terms, deadline_s=None) if self.transcript.num_new_tokens else spec.terms,
            num_prior_tokens=self._num_prior_tokens,
        )


def _outcome_of(loss: AttemptLoss | None) -> Outcome:
    if loss is None:
        return Outcome.FINISHED
    return Outcome.CANCELLED if loss.cause is Cause.MISSED else Outcome.FAILED
