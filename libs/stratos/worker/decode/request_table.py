"""The requests of a decode worker: submit, cancel, attach, orphans, drain.

Life of a request
    1. ``submit``: refused while draining, when it is known already, or when the table is full; a newer attempt
       ends the older one.  Otherwise a task has its prompt computed (``PrefillPolicy``) and stays until it ended.
    2. engine steps append to the record's log and mark it at its session.
    3. it leaves the table when its last output was taken for sending, or when no session attached within
       ``orphan_ttl_s`` after its session broke.
Every path out cancels the task, and the task's end aborts the request in the engine and gives back its adapter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack

from stratos.common.bugs import report_bug
from stratos.common.clock import Clock
from stratos.common.errors import BadRequest, Draining, NotFound, Overloaded, QueueTimeout, StratosError
from stratos.core.generation import DraftUse, Submission
from stratos.core.requests.records import NO_CHOICES, ChoiceOutput, RequestKey
from stratos.engine.contract.results import StepResult
from stratos.rpc.tracing import TRACING_OFF, SpanKind, Tracing
from stratos.worker.decode.intents import Intents, sum_intents
from stratos.worker.decode.latencies import Latencies
from stratos.worker.decode.portions import PortionedWork
from stratos.worker.decode.session import OutputSession
from stratos.worker.decode.spans import describe_decode
from stratos.worker.decode.table_contract import Prefill, StatusNews
from stratos.worker.decode.usage_log import UsageLog
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.records import RequestRecord

logger = logging.getLogger(__name__)
PORTION = 512
"""Streams of a step, or shares of it, that are taken over in one turn of the event loop: a few milliseconds."""


class RequestTable:
    """All open requests by request id. Belongs to the event loop.

    Args:
        engine: of this worker.
        policy: has prompts computed.
        clock: of this worker.
        tracing: where the spans of requests go.
        max_requests: more are refused.
        orphan_ttl_s: requests of a broken session are freed after this long.
        news: what routers have to know of.
        usage: keeps what ended attempts took.
        on_damage: told of a request whose KV may have been damaged, and of the blocks that were forgotten for it.
    """

    def __init__(
        self,
        engine: EngineClient,
        policy: Prefill,
        clock: Clock,
        tracing: Tracing = TRACING_OFF,
        *,
        max_requests: int,
        orphan_ttl_s: float,
        news: StatusNews,
        usage: UsageLog,
        on_damage: Callable[[RequestRecord, list[bytes]], None] = lambda *_: None,
    ) -> None:
        self._news = news
        self._on_damage = on_damage
        self.usage = usage
        self.latencies = Latencies()
        self._engine = engine
        self._policy = policy
        self._clock = clock
        self._max_requests, self._orphan_ttl_s = max_requests, orphan_ttl_s
        self._tracing = tracing
        self._records: dict[str, RequestRecord] = {}
        self._sessions: dict[RequestKey, OutputSession] = {}
        self._tasks: dict[RequestKey, asyncio.Task[None]] = {}
        self._orphans: set[RequestRecord] = set()
        self._intended: dict[str, RequestRecord] = {}
        """Requests of which the engine may not know yet."""
        self._steps = PortionedWork()
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._records)

    @property
    def num_orphans(self) -> int:
        """Requests whose session broke and that wait for Attach."""
        return len(self._orphans)

    def intents(self, p90_output_tokens: int, block_size: int, max_batch_slots: int) -> Intents:
        """Demand of requests that are here and hold nothing in the engine yet."""
        self._intended = {name: r for name, r in self._intended.items() if not (r.is_admitted or r.is_ended)}
        requests = (r.submission.request for r in self._intended.values())
        return sum_intents(requests, p90_output_tokens, block_size, max_batch_slots)

    @property
    def num_open_tasks(self) -> int:
        """Requests that still hold resources of this worker."""
        return len(self._tasks)

    def submit(self, session: OutputSession, submission: Submission) -> None:
        """Start a request, or resume one.

        Raises:
            Draining, Overloaded: not here, not now.
            BadRequest: this attempt, or a newer one, is known already.
        """
        key = submission.request.key
        if self.is_draining:
            raise Draining("this worker is leaving; ask the router for a new placement")
        known = self._records.get(key.request_id)
        if known is not None and (attempt := known.owned_key.attempt) >= key.attempt:
            raise BadRequest(
                f"attempt {attempt} of this request is open here; Attach picks it up, a new attempt needs "
                "a higher number",
                param="attempt",
                code="duplicate_attempt",
            )
        # The epoch decides: a newer attempt fences the older one off, also when its own end never gets here.
        if known is not None:
            self._remove(known)
        if len(self._records) >= self._max_requests or len(self._tasks) >= 2 * self._max_requests:
            raise Overloaded(f"this worker has {len(self._records)} open requests, its limit")
        record = RequestRecord(submission, self._engine.info.identity.numerics_id)
        self._records[key.request_id] = record
        self._sessions[key] = session
        self._intended[key.request_id] = record
        task = asyncio.create_task(self._serve(record), name=f"request-{key.request_id}-{key.attempt}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        self._news.note_placement(submission.request.terms.tenant, submission.handoff_id, self._clock.now())
        self._news.notify()

    def cancel(self, key: RequestKey, choices: Mapping[int, int | None] = NO_CHOICES) -> None:
        """End a request or some of its choices; unknown ones are ignored, but for their count.

        Args:
            key: of the request.
            choices: each with the number of emitted tokens that count, where that is known.
        """
        record = self._owned(key)
        if record is None:
            self.usage.correct(key, choices)
            return
        if not choices:
            self._remove(record)
            return
        self._engine.abort(record.key, tuple(choices))
        record.cancel_choices(choices)
        self._mark(record)

    def attach(self, session: OutputSession, key: RequestKey, num_received: dict[int, int]) -> None:
        """Let ``session`` go on with a request whose own session broke, from what it has received.

        Raises:
            NotFound: no such request; it ended, was freed or never was here.
        """
        record = self._owned(key)
        if record is None:
            raise _not_here()
        self._attach(session, record, num_received)

    def take_over(self, session: OutputSession, key: RequestKey, num_received: dict[int, int]) -> None:
        """Let ``session`` go on with a request of another gateway, under a newer attempt: its key is the fence.

        What the older one still says of it, its Cancel above all, is of an attempt that is not known any more.

        Raises:
            NotFound: no such request, or its log does not have all that was not received.
            BadRequest: this attempt, or a newer one, has it.
        """
        record = self._records.get(key.request_id)
        if record is None or not record.has_behind(num_received):
            raise _not_here()
        if record.owned_key.attempt >= key.attempt:
            text = f"attempt {record.owned_key.attempt} has this request; attempt {key.attempt} is fenced off"
            raise BadRequest(text, param="attempt", code="fenced_attempt")
        was = record.owned_key.attempt
        logger.debug("request %s, attempt %d, goes on as attempt %d", record.label, was, key.attempt)
        record.owned_key = key
        self._attach(session, record, num_received)

    def _attach(self, session: OutputSession, record: RequestRecord, num_received: dict[int, int]) -> None:
        if (old := self._sessions.get(record.key)) is not None:
            old.forget(record)
        self._sessions[record.key] = session
        record.orphan_since_s = None
        self._orphans.discard(record)
        record.rewind(num_received)
        session.mark(record)

    def release(self, session: OutputSession) -> None:
        """The session broke: its requests are orphans from now on."""
        self.usage.leave(session)
        for record in self._records.values():
            if self._sessions.get(record.key) is session:
                del self._sessions[record.key]
                session.forget(record)
                record.orphan_since_s = self._clock.now()
                self._orphans.add(record)

    def reap(self) -> None:
        """Free orphans that no session attached to in time; called often."""
        limit_s = self._clock.now() - self._orphan_ttl_s
        for record in [r for r in self._orphans if r.orphan_since_s is not None and r.orphan_since_s <= limit_s]:
            self._remove(record)
        self.usage.offer()

    def discard_sent(self, keys: list[RequestKey]) -> None:
        """Forget those of ``keys`` that ended and whose last output was handed to the stream."""
        for key in keys:
            if (record := self._owned(key)) is not None and record.is_sent and record.key in self._sessions:
                self._remove(record)

    def on_step(self, result: StepResult) -> None:
        """Take over what one engine step produced, in portions."""
        self.latencies.on_step(result)
        self._steps.add(self._take(result))

    def _take(self, result: StepResult) -> Iterator[None]:
        busy_ns, total = result.busy_ns, result.shares.num_tokens or 1
        for key, stats in result.started_stats.items():
            if (record := self._find(key)) is not None:
                record.stats, record.first_token_s = stats, result.ended_s
                self.latencies.on_first_token(record.submission.request.terms.arrival_s, result.ended_s)
                record.prompt_logprobs = result.prompt_logprobs.get(key, ())
        for place, (key, num_tokens) in enumerate(result.shares.requests.items(), 1):
            if (record := self._find(key)) is not None:
                record.note_step(num_tokens, busy_ns * num_tokens // total)
            if not place % PORTION:
                yield
        for count in result.drafts:
            if (record := self._find(count.key)) is not None:
                use = DraftUse(num_drafted=count.num_drafted, num_accepted=count.num_accepted, num_cut=count.num_cut)
                record.drafts = record.drafts.plus(use)
        touched = dict[RequestKey, RequestRecord]()
        for place, output in enumerate(result.outputs, 1):
            if (record := self._find(output.key)) is not None:
                self._append(record, output)
                self._news.count_output(record.submission.request.terms.tenant, len(output.token_ids))
                touched[output.key] = record
            if not place % PORTION:
                self._note_news(touched, result.ended_s)
                yield
        for key, hashes in result.damaged.items():
            if (record := self._find(key)) is not None:
                self._on_damage(record, hashes)
        for key, error in result.errors.items():
            if (record := self._find(key)) is not None:
                record.fail(error)
                touched[key] = record
        self._note_news(touched, result.ended_s)

    def _note_news(self, touched: dict[RequestKey, RequestRecord], ended_s: float) -> None:
        for record in touched.values():
            if record.is_ended:
                record.last_token_s = ended_s
            self._mark(record)
        touched.clear()

    def fail_all(self, error: StratosError) -> None:
        """End every request with ``error``, with which its gateway goes elsewhere."""
        for record in list(self._records.values()):
            record.fail(error)
            self._mark(record)

    def hand_back(self) -> tuple[int, list[str]]:
        """Give every request back to its gateway, to be resumed elsewhere; returns how many, and whose KV is here."""
        open_records = [record for record in self._records.values() if not record.is_ended]
        self.fail_all(Draining("this worker is leaving; resume the request elsewhere"))
        return len(open_records), [r.key.request_id for r in open_records if r.stats is not None]

    async def wait_empty(self) -> None:
        """Wait until no request is left and none holds resources."""
        while self._records or self._tasks:
            self.reap()
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End everything at once."""
        self.is_draining = True
        for record in list(self._records.values()):
            self._remove(record)
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    # -- inside ------------------------------------------------------------------------------------

    def _find(self, key: RequestKey) -> RequestRecord | None:
        """The request that the engine calls so."""
        record = self._records.get(key.request_id)
        return record if record is not None and record.key == key else None

    def _owned(self, key: RequestKey) -> RequestRecord | None:
        """The request that its gateway calls so."""
        record = self._records.get(key.request_id)
        return record if record is not None and record.owned_key == key else None

    def _append(self, record: RequestRecord, output: ChoiceOutput) -> None:
        try:
            record.append(output)
        except AssertionError:  # one request's bug must not end the others of the step
            record.fail(report_bug(logger, f"in an output of request {record.label}"))  # its task leaves the engine

    def _mark(self, record: RequestRecord) -> None:
        if (session := self._sessions.get(record.key)) is not None:
            session.mark(record)

    def _remove(self, record: RequestRecord) -> None:
        del self._records[record.key.request_id]
        self._intended.pop(record.key.request_id, None)
        self._orphans.discard(record)
        if (session := self._sessions.pop(record.key, None)) is not None:
            session.forget(record)
        if (tag := record.submission.meter) is not None:
            self.usage.add(record.count(tag), session, num_choices=record.num_choices)
        if (task := self._tasks.get(record.key)) is not None and not record.is_ended:
            task.cancel()

    async def _serve(self, record: RequestRecord) -> None:
        """Run the request to its end, inside its span."""
        request_id, attempt = record.key
        logger.debug("request %s, attempt %d, runs here", record.label, attempt)
        with self._tracing.span(
            "decode",
            record.submission.trace,
            kind=SpanKind.SERVER,
            begin_s=record.submission.request.terms.arrival_s,
            generation_id=request_id,
            attempt=attempt,
        ) as span:
            try:
                await self._run(record)
            finally:
                describe_decode(self._tracing, span, record)

    async def _run(self, record: RequestRecord) -> None:
        """Hold everything the request needs until it ended."""
        try:
            async with AsyncExitStack() as stack:
                try:
                    await self._prefill(record, stack)
                    await record.ended.wait()
                finally:
                    self._engine.abort(record.key)  # before the stack gives back the adapter that it runs with
        except StratosError as error:
            record.fail(error)
        except asyncio.CancelledError:
            record.ended.set()
            raise
        except Exception:
            record.fail(report_bug(logger, f"in request {record.label}"))
        self._mark(record)

    async def _prefill(self, record: RequestRecord, stack: AsyncExitStack) -> None:
        """Have the prompt computed, unless the request ends first; its deadline bounds the time."""
        left_s = record.submission.request.terms.left_s(self._clock.now())
        prefilling = asyncio.ensure_future(self._policy.prefill(record, stack))
        ended = asyncio.ensure_future(record.ended.wait())
        try:
            await asyncio.wait({prefilling, ended}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if prefilling.done():
                prefilling.result()
            elif not record.is_ended:
                raise QueueTimeout("the request's deadline passed while its prompt was being computed")
        finally:
            ended.cancel()
            if not prefilling.done():
                prefilling.cancel()
                await asyncio.wait({prefilling})


def _not_here() -> NotFound:
    return NotFound("this worker does not have that request any more; resume it with a new attempt")
