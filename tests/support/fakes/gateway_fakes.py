"""A router, sessions and a platform for generations that run without any network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import StratosError, WorkerLost
from stratos.core.gateway_load import GatewayLoad
from stratos.core.generation import ChoiceDelta, Receipt, RequestDelta, Submission
from stratos.core.placement import Outcome, Placement, PlacementRequest, WorkerRef, WorkerRole
from stratos.core.requests.records import NO_CHOICES, FinishReason, PositionLogprobs, RequestKey
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.generation.prompt_names import PromptDigests
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.sessions.sink import AttemptSink

Play = Callable[["SteppedSink", Submission], None]
"""What a worker does with an attempt."""


def worker(number: int) -> WorkerRef:
    return WorkerRef(worker_id=f"decode-{number}", incarnation=f"inc-{number}", address="", role=WorkerRole.DECODE)


def output(
    key: RequestKey,
    offset: int = 0,
    token_ids: Sequence[int] = (),
    finish_reason: FinishReason | None = None,
    *,
    index: int = 0,
    error: StratosError | None = None,
    receipt: Receipt | None = None,
    prompt_logprobs: tuple[PositionLogprobs, ...] = (),
) -> RequestDelta:
    has_choice = bool(token_ids) or finish_reason is not None
    choice = ChoiceDelta(index=index, offset=offset, token_ids=token_ids, finish_reason=finish_reason)
    return RequestDelta(
        key=key,
        choices=(choice,) if has_choice else (),
        error=error,
        receipt=receipt,
        prompt_logprobs=prompt_logprobs,
    )


@dataclass
class FakeRouter:
    """Names another worker for every attempt; ``answers`` holds errors that come first."""

    answers: list[StratosError | None] = field(default_factory=list)
    requests: list[PlacementRequest] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    timeouts_s: list[float | None] = field(default_factory=list)
    convicted: list[bytes] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    """Numbers of the workers to name; without it each attempt gets another one."""

    async def schedule(self, request: PlacementRequest, *, timeout_s: float | None = None) -> Placement:
        self.requests.append(request)
        self.timeouts_s.append(timeout_s)
        if self.answers and (error := self.answers.pop(0)) is not None:
            raise error
        number = len(self.requests)
        return Placement(
            decode=worker(self.names.pop(0) if self.names else number),
            handoff_id=f"handoff-{number}",
            status_version=number * 10,
        )

    async def report_load(self, load: GatewayLoad) -> None: ...

    def suspects(self, tenant: str) -> bool:
        return False

    async def convict(self, request: PlacementRequest) -> None:
        self.convicted.append(request.prompt_digest)

    def report(self, placement: Placement, outcome: Outcome, num_output_tokens: int) -> None:
        self.outcomes.append(outcome)


@dataclass
class SteppedSink:
    """Each message is a step of the worker."""

    sink: AttemptSink
    session: FakeSession

    @property
    def label(self) -> str:
        return self.sink.label

    def on_output(self, output: RequestDelta, now_s: float | None = None) -> None:
        self.session.step += 1
        self.sink.on_output(output, self.session.clock.now() if now_s is None else now_s)

    def on_tokens(self, delta: ChoiceDelta, now_s: float) -> None:
        self.session.step += 1
        self.sink.on_tokens(delta, now_s)

    def on_token(self, offset: int, token_id: int, now_s: float) -> None:
        self.session.step += 1
        self.sink.on_token(offset, token_id, now_s)

    def on_failure(self, error: StratosError) -> None:
        self.sink.on_failure(error)

    def on_lost(self, cause: str, *, was_taken: bool = True) -> None:
        self.sink.on_lost(cause, was_taken=was_taken)


@dataclass
class FakeSession:
    """Plays an attempt as soon as the loop is free."""

    play: Play
    clock: FakeClock = field(default_factory=FakeClock)
    submissions: list[Submission] = field(default_factory=list)
    cancelled: list[tuple[RequestKey, dict[int, int]]] = field(default_factory=list)
    released: list[RequestKey] = field(default_factory=list)
    step: int = 0
    """Of the worker; one more with each message."""

    def submit(self, submission: Submission, sink: AttemptSink) -> None:
        self.submissions.append(submission)
        asyncio.get_running_loop().call_soon(self.play, SteppedSink(sink, self), submission)

    def cancel(self, key: RequestKey, choices: Mapping[int, int] = NO_CHOICES) -> None:
        self.cancelled.append((key, dict(choices)))

    def release(self, key: RequestKey) -> None:
        self.released.append(key)


@dataclass
class FakeSessions:
    """One session per attempt, in the order of ``plays``; ``None`` is a worker that cannot be reached."""

    plays: list[Play | None]
    opened: list[FakeSession] = field(default_factory=list)
    clock: FakeClock = field(default_factory=FakeClock)
    back: frozenset[str] = frozenset()
    """Incarnations that take a new session at once."""

    async def get(self, ref: WorkerRef) -> FakeSession:
        if (play := self.plays.pop(0)) is None:
            raise WorkerLost("cannot be reached")
        self.opened.append(FakeSession(play, self.clock))
        return self.opened[-1]

    async def is_back(self, ref: WorkerRef) -> bool:
        return ref.incarnation in self.back

    async def has_moved(self, ref: WorkerRef, step: int) -> bool:
        return ref.incarnation in self.back


def make_platform(router: FakeRouter, sessions: FakeSessions, clock: FakeClock | None = None) -> FleetAccess:
    sessions.clock = clock or sessions.clock
    return FleetAccess(
        routers=router,
        prompt_digests=PromptDigests(b"secret"),
        sessions=sessions,  # type: ignore[arg-type]
        clock=sessions.clock,
        metrics=GatewayMetrics(CollectorRegistry()),
        placement_timeout_s=10.0,
    )


class PlainText:
    """Detokenizer and stop matcher of a text that does not matter."""

    is_active = False

    def push(self, ids: object) -> str:
        return ""

    def flush(self) -> str:
        return ""

    def feed(self, text: str, num_tokens: int) -> tuple[str, None]:
        return text, None
