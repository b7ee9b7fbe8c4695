"""One session with one decode worker process, shared by all requests of this gateway.

Outgoing messages wait in a bounded queue that one task writes; one task reads and hands news straight to the
attempts' sinks, without a task or a queue per request.  When the stream ends, fails or the worker hangs,
every open attempt hears ``on_lost`` once, and the session is of no use any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Protocol

import grpc
import grpc.aio

from stratos.api.worker.v1 import decode_pb2, decode_pb2_grpc
from stratos.common.bugs import report_bug
from stratos.common.clock import Clock
from stratos.common.errors import FeatureUnavailable, Overloaded, WorkerLost
from stratos.core.features import Feature, can_speak_with, name_features
from stratos.core.generation import RequestDelta, Submission
from stratos.core.ledger.usage import UsageCount
from stratos.core.placement import WorkerRef
from stratos.core.requests.records import NO_CHOICES, RequestKey
from stratos.rpc.clients.dialer import ANY_WORKER, PLAIN, Dialer
from stratos.rpc.codec import generation as codec
from stratos.rpc.codec.fields import Part
from stratos.rpc.codec.usage import counts_from_pb, usage_ack
from stratos_gateway.access.contract import Gate
from stratos_gateway.sessions.liveness import SessionConfig, SessionLiveness
from stratos_gateway.sessions.outbox import SessionOutbox
from stratos_gateway.sessions.sink import AttemptSink

_log = logging.getLogger(__name__)
Outputs = Mapping[int, RequestDelta]
"""Outputs of a message that have been read already, by their places."""
NO_OUTPUTS: Outputs = MappingProxyType({})


class UsageMeter(Protocol):
    """Told of what sessions begin, and of what it took."""

    def begin(self, request_id: str) -> None:
        """A worker gets a request that is billed."""

    def on_counts(self, source: WorkerSession, counts: Sequence[UsageCount]) -> None:
        """A worker told what ended attempts took."""


class WorkerSession:
    """Client side of ``DecodeService.Session``. Belongs to the event loop.

    Args:
        worker: as the placement names it.
        clock: for liveness.
        config: limits of liveness.
        dialer: connects.
        meter: told what ended attempts took, of this session's requests and of gateways that died.
        gate: before what workers say; ``None`` is always open.
    """

    def __init__(
        self,
        worker: WorkerRef,
        clock: Clock,
        config: SessionConfig,
        dialer: Dialer = PLAIN,
        meter: UsageMeter | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.worker = worker
        self._meter = meter
        self._gate = gate
        self.is_broken = False
        self._features: frozenset[str] = frozenset()
        self._clock = clock
        self._liveness = SessionLiveness(config, clock.now())
        self._sinks: dict[tuple[str, int], AttemptSink] = {}
        """By request and attempt, as ``RequestKey`` has them."""
        self._number_of: dict[tuple[str, int], int] = {}
        """Number of each attempt's Submit, from 1 on."""
        self._by_number: dict[int, AttemptSink] = {}
        """The same sinks by the numbers that their Submits said."""
        self._num_submits = self._num_taken = 0
        """Submits so far, and how many of them the worker says that it took."""
        self._outbox = SessionOutbox()
        self._long_outputs = ThreadPoolExecutor(1, "long-outputs")
        self._tasks: list[asyncio.Task[None]] = []
        self._channel: grpc.aio.Channel = dialer.channel(worker.address, ANY_WORKER)
        self._call: Any = None

    @property
    def step(self) -> int:
        """The worker's step counter as it was last heard, -1 before."""
        return self._liveness.step

    async def open(self, timeout_s: float) -> None:
        """Connect and exchange Hello and Welcome.

        Raises:
            WorkerLost: there is no answer in time, or another process does, or one of a version too far away.
        """
        try:
            await self._begin(timeout_s)
        except BaseException:
            await self.close()
            raise

    async def _begin(self, timeout_s: float) -> None:
        first = await self._welcome(timeout_s)
        if first is None:  # said here, where no error is handled: one that is kept would keep the connection
            raise WorkerLost(f"{self.worker.worker_id} does not open a session")
        incarnation = "" if first is grpc.aio.EOF else first.welcome.worker.incarnation
        if not incarnation or (self.worker.incarnation and incarnation != self.worker.incarnation):
            raise WorkerLost(f"{self.worker.worker_id} is another process than the router knows")
        if not can_speak_with(first.welcome.protocol_version):
            raise WorkerLost(f"{self.worker.worker_id} speaks protocol version {first.welcome.protocol_version}")
        self._features, self._outbox.takes_further = frozenset(first.welcome.features), first.welcome.takes_further
        self._liveness.forgive(self._clock.now())
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    async def _welcome(self, timeout_s: float) -> Any:
        """First word of the worker; ``None`` where it says nothing in time."""
        try:
            async with asyncio.timeout(timeout_s):
                self._call = decode_pb2_grpc.DecodeServiceStub(self._channel).Session()
                await self._call.write(codec.hello(takes_columns=True))
                return await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError) as error:
            _log.debug("%s does not open a session: %s", self.worker.worker_id, error)
            return None

    def submit(self, submission: Submission, sink: AttemptSink) -> None:
        """Start an attempt; its news go to ``sink`` until it ends, is cancelled or lost.

        Raises:
            WorkerLost: the session has broken.
            FeatureUnavailable: the worker does not offer what the attempt needs; it might not even notice.
            Overloaded: the worker does not take messages.
        """
        self._require_open()
        if lacking := submission.required_features - self._features:
            raise FeatureUnavailable(f"{self.worker.worker_id} does not offer: {name_features(lacking)}")
        key, number = submission.request.key, self._num_submits + 1
        part = codec.submit_to_part(submission, self._clock.now())
        if Feature.PINS not in self._features:  # it keeps no KV at the wish of a client
            del part["terms"]["pins"]
        if Feature.KV_KEYS not in self._features:  # without a disk tier: a key goes where it is used, and nowhere else
            del part["terms"]["kv_key"]
        self._begin_attempt(
            key, {"submit": part, "submit_number": number}, sink, is_metered=submission.meter is not None
        )
        self._num_submits = number
        self._by_number[number], self._number_of[key] = sink, number

    def take_over(
        self, key: RequestKey, num_received: Mapping[int, int], sink: AttemptSink, *, is_metered: bool
    ) -> None:
        """Go on with what an older attempt of another gateway runs at the worker.

        Args:
            key: of the new attempt.
            num_received: emitted tokens that are known, of each choice that goes on.
            sink: hears what follows them, or that the worker has nothing to go on with.
            is_metered: it is billed.

        Raises:
            WorkerLost: the session has broken.
            Overloaded: the worker does not take messages.
        """
        self._require_open()
        self._begin_attempt(key, codec.take_over(key, num_received), sink, is_metered=is_metered)

    def _require_open(self) -> None:
        if self.is_broken:
            raise WorkerLost(f"the session with {self.worker.worker_id} broke")

    def _begin_attempt(self, key: RequestKey, message: Part, sink: AttemptSink, *, is_metered: bool) -> None:
        """Send what begins an attempt here, and let ``sink`` hear of it."""
        if not self._outbox.put(message):
            raise Overloaded(f"{self.worker.worker_id} does not take messages")
        self._sinks[key] = sink
        if self._meter is not None and is_metered:
            self._meter.begin(key.request_id)

    def cancel(self, key: RequestKey, choices: Mapping[int, int] = NO_CHOICES) -> None:
        """End an attempt, or some of its choices; without ``choices`` nothing of it is delivered any more.

        Args:
            key: of the attempt.
            choices: each with the number of tokens that are its answer, those of earlier attempts included.
        """
        if not choices:
            self.release(key)
        # A lost Cancel would leak; a broken session frees everything there.
        if not (self.is_broken or self._outbox.put(codec.cancel(key, choices))):
            self._break("broken", "it does not take messages")

    def acknowledge_usage(self, request_ids: Sequence[str]) -> None:
        """The ledger has what these took; an acknowledgement that is lost costs the worker memory alone."""
        if not self.is_broken:
            self._outbox.put(usage_ack(request_ids))

    def release(self, key: RequestKey) -> None:
        """The attempt ended at the worker: forget its sink."""
        self._sinks.pop(key, None)
        self._by_number.pop(self._number_of.pop(key, 0), None)

    def check(self) -> None:
        """Break the session if the worker hangs; called often."""
        if not self.is_broken and (fault := self._liveness.fault(self._clock.now())):
            self._break("hang", fault)

    def forgive(self) -> None:
        self._liveness.forgive(self._clock.now())

    async def close(self) -> None:
        """End the stream and the connection."""
        self._long_outputs.shutdown(wait=False)
        self.is_broken = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._call is not None:
            self._call.cancel()
            self._call = None  # it keeps the connection for as long as it is known
        await self._channel.close()

    async def _read(self) -> None:
        reason = "it ended the session"
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                outputs = await self._read_long(message.step_outputs.outputs)
                if self._gate is not None and self._gate.is_shut:
                    await self._gate.opened()
                self._handle(message, outputs)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name.lower()}: {error.details()}"
        except Exception:
            _log.exception("bug while reading the session with %s", self.worker.worker_id)
            reason = "a message could not be handled"
        self._break("broken", reason)

    async def _read_long(self, outputs: Sequence[decode_pb2.RequestOutput]) -> Outputs:
        """Read outputs with many log probabilities, beside the event loop."""
        places = [
            place
            for place, output in enumerate(outputs)
            if output.ByteSize() > codec.INLINE_PLACES and _num_places(output) > codec.INLINE_PLACES
        ]  # a place has more than a byte
        if not places:
            return NO_OUTPUTS
        chosen = {place: outputs[place] for place in places}
        return await asyncio.get_running_loop().run_in_executor(self._long_outputs, _read_outputs, chosen)

    async def _write(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader tells why
            while True:
                await self._call.write(await self._outbox.take())

    def _handle(self, message: decode_pb2.SessionResponse, outputs: Outputs = NO_OUTPUTS) -> None:
        kind, now_s = message.WhichOneof("message"), self._clock.now()
        if kind == "step_outputs":
            step = message.step_outputs
            self._liveness.heard(step.engine_step, now_s)
            self._note_taken(step.num_submits)
            for place, output in enumerate(step.outputs):
                if (sink := self._sinks.get((output.request_id, output.attempt))) is not None:
                    self._deliver(output, sink, now_s, outputs.get(place))
            if step.HasField("tokens"):
                self._deliver_tokens(step.tokens, now_s)
        elif kind == "usage_counts":
            if self._meter is not None:
                self._meter.on_counts(self, counts_from_pb(message.usage_counts))
        elif kind == "progress":
            progress = message.progress
            self._note_taken(progress.num_submits)
            self._liveness.heard(
                progress.engine_step,
                now_s,
                is_computing=progress.is_computing,
                slow_step_s=progress.slow_step_ms / 1000,
            )

    def _note_taken(self, num_submits: int) -> None:
        if num_submits > self._num_submits:
            raise ValueError(f"the worker says that it took {num_submits} Submits of {self._num_submits}")
        self._num_taken = num_submits

    def _deliver(
        self, output: decode_pb2.RequestOutput, sink: AttemptSink, now_s: float, read: RequestDelta | None
    ) -> None:
        """A message that cannot be handled ends its own request: the session belongs to many."""
        try:
            if read is not None:
                sink.on_output(read, now_s)
            elif (tokens := codec.tokens_from_pb(output)) is not None:
                sink.on_tokens(tokens, now_s)
            else:
                sink.on_output(codec.delta_from_pb(output), now_s)
        except Exception:
            self._fail(sink)

    def _deliver_tokens(self, tokens: decode_pb2.TokenColumns, now_s: float) -> None:
        """Deliver columns.

        Raises:
            ValueError: it is not certain whose each token is, so none of the session's can be trusted.
        """
        submits, offsets, token_ids = tokens.submits, tokens.offsets, tokens.token_ids
        if not len(submits) == len(offsets) == len(token_ids):
            raise ValueError(f"columns of {len(submits)}, {len(offsets)} and {len(token_ids)} tokens")
        if submits and not 0 < min(submits) <= max(submits) <= self._num_submits:
            raise ValueError(f"columns name Submits beyond the {self._num_submits} of the session")
        sink_of = self._by_number.get
        for number, offset, token_id in zip(submits, offsets, token_ids, strict=True):
            if (sink := sink_of(number)) is None:  # its attempt has ended here
                continue
            try:
                sink.on_token(offset, token_id, now_s)
            except Exception:
                self._fail(sink)

    def _fail(self, sink: AttemptSink) -> None:
        sink.on_failure(report_bug(_log, f"in an output of {self.worker.worker_id} for {sink.label}"))

    def _break(self, cause: str, reason: str) -> None:
        if self.is_broken:
            return
        self.is_broken = True
        sinks, self._sinks = self._sinks, {}
        self._by_number.clear()
        _log.warning("session with %s (%s) is lost: %s", self.worker.worker_id, self.worker.incarnation, reason)
        self._call.cancel()
        for key, sink in sinks.items():
            sink.on_lost(cause, was_taken=self._number_of.get(key, 0) <= self._num_taken)


def _num_places(output: decode_pb2.RequestOutput) -> int:
    """Places with log probabilities."""
    return len(output.prompt_logprobs) + sum([len(delta.logprobs) for delta in output.deltas])


def _read_outputs(outputs: Mapping[int, decode_pb2.RequestOutput]) -> Outputs:
    """Read those that can be read; the others fail once more where that ends their own request."""
    found = dict[int, RequestDelta]()
    for place, output in outputs.items():
        with contextlib.suppress(Exception):
            found[place] = codec.delta_from_pb(output)
    return found
