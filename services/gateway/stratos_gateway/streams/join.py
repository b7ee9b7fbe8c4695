"""A request meets its record: a new one is made, or the answer that is there already is shown, and gone on with."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown, KeyReused, StreamCancelled, StreamGone
from stratos.common.ids import new_id
from stratos.store.sealed.stream_store import Found, StreamAsk, StreamRecord
from stratos_gateway.answering.output import Output
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.generation.source import GeneratedOutput, WorkersSource
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import Usage
from stratos_gateway.openai.rendering import AnswerIdentity
from stratos_gateway.streams.asking import (
    STREAM_HEADER,
    cursor_tag,
    derived_id,
    derived_seed,
    idempotency_key,
    last_event_id,
    stream_id,
)
from stratos_gateway.streams.codec import StreamHead, decode_head, encode_head
from stratos_gateway.streams.cursor import FROM_THE_START, Cursor, parse_cursor
from stratos_gateway.streams.desk import StreamDesk
from stratos_gateway.streams.followed import FollowedAnswer, Following
from stratos_gateway.streams.numbering import NumberedRenderer
from stratos_gateway.streams.owned import GIVEN_UP, OwnedStream
from stratos_gateway.streams.settings import StreamsConfig

RESUMED = "stratos.stream"
"""Key of an ASGI scope whose client comes back to the stream of this id."""
NO_STREAM = b"none"
"""Value of the header where a record was wanted and there is none."""


class EndTime:
    """Wall clock that stands once it was read: an answer says at every gateway when it ended."""

    def __init__(self) -> None:
        self._unix_s: float | None = None

    def set(self, unix_s: int) -> None:
        """It ended then."""
        self._unix_s = unix_s

    def __call__(self) -> float:
        """Seconds since the epoch."""
        if self._unix_s is None:
            self._unix_s = time.time()
        return self._unix_s


@dataclass(slots=True)
class Joined:
    """A request and its record."""

    owned: OwnedStream | None = None

    def leave(self) -> None:
        """The request has ended: what it did not finish any gateway may."""
        if self.owned is not None and not self.owned.ends and not self.owned.is_lost:
            self.owned.ends = GIVEN_UP


@dataclass(frozen=True, slots=True)
class _Place:
    """A stream, and where the client of a request stands in it."""

    stream: str
    tag: str
    num_choices: int
    cursor: Cursor


class StreamJoin:
    """Belongs to the event loop.

    Args:
        desk: writes records.
        workers: generate.
        config: of the gateway.
        metrics: count what becomes of records.
    """

    def __init__(
        self, desk: StreamDesk, workers: WorkersSource, config: StreamsConfig, metrics: GatewayMetrics
    ) -> None:
        self._desk = desk
        self._workers = workers
        self._config = config
        self._metrics = metrics

    async def join(self, request: ClientRequest[PreparedGeneration]) -> Joined | None:
        """Make the request's record, or find it; ``None`` where it runs without.

        Raises:
            KeyReused, StreamGone, StreamCancelled, DependencyDown: the client's answer.
            BadRequest: the key or the id of the last event cannot be.
        """
        http, tenant = request.http, request.tenant
        key, resumed = idempotency_key(http.headers), http.scope.get(RESUMED, "")
        identity, sub_key = _identity(request, key), self._desk.store.key(tenant.id)
        if sub_key is None or not _can_be_recorded(request) or len(request.body_text) > self._config.max_body_bytes:
            self._without(request, identity)
            return None
        stream = resumed or stream_id(sub_key, key)
        place = self._place(request, sub_key, stream, is_known=bool(resumed or key))
        head = b""
        if not resumed:
            head = encode_head(StreamHead(path=http.url.path, body=request.body_text, identity=identity))
        fingerprint = "" if resumed else _fingerprint(sub_key, http.url.path, request.body_text)
        ask = StreamAsk(tenant_id=tenant.id, stream_id=stream, fingerprint=fingerprint, head=head)
        try:
            async with asyncio.timeout(self._config.call_s):
                found = await self._desk.store.open(ask)
        except (DependencyDown, RedisError, TimeoutError) as error:
            if resumed:
                raise DependencyDown("the record of this stream cannot be read") from error
            self._without(request, identity)
            return None
        if found.found is Found.NONE and not resumed:
            self._without(request, identity)  # the tenant's data key has gone in between
            return None
        return self._joined(request, place, found, identity)

    def _place(
        self, request: ClientRequest[PreparedGeneration], sub_key: bytes, stream: str, *, is_known: bool
    ) -> _Place:
        tag, options = cursor_tag(sub_key, stream), request.prepared.options
        num_choices, cursor = options.n * len(request.prepared.specs), FROM_THE_START
        if options.stream and is_known:
            cursor = parse_cursor(last_event_id(request.http.headers), tag, num_choices)
        return _Place(stream, tag, num_choices, cursor)

    def _without(self, request: ClientRequest[PreparedGeneration], identity: AnswerIdentity) -> None:
        self._metrics.stream_records.labels("none").inc()
        request.exchange.headers.append((STREAM_HEADER, NO_STREAM))
        request.prepared = request.prepared.rebuilt(identity)

    def _joined(
        self, request: ClientRequest[PreparedGeneration], place: _Place, found: StreamRecord, identity: AnswerIdentity
    ) -> Joined:
        if found.found is Found.OTHER:
            raise KeyReused("this idempotency key was used with another body")
        if found.found is Found.NONE:
            raise StreamGone("this stream is kept no more")
        if found.found is Found.CANCELLED:
            raise StreamCancelled("this stream was cancelled")
        request.is_recorded = True
        request.exchange.headers.append((STREAM_HEADER, place.stream.encode()))
        joined = Joined()
        if found.found is not Found.MADE:
            self._show(request, place, found, joined)
            return joined
        self._metrics.stream_records.labels("made").inc()
        renderer = _prepare(request, replace(identity, wall_clock=EndTime()), place)
        joined.owned = self._own(request, renderer, place, (1, 0), lambda: request.output)
        return joined

    def _show(
        self, request: ClientRequest[PreparedGeneration], place: _Place, found: StreamRecord, joined: Joined
    ) -> None:
        """Let the request be answered from its record."""
        head = decode_head(found.head)
        if head is None:
            raise StreamGone("the record of this stream cannot be read")
        self._metrics.stream_records.labels("taken" if found.found is Found.TAKEN else "replayed").inc()
        ended = EndTime()
        renderer = _prepare(request, replace(head.identity, wall_clock=ended), place)
        keep = request.prepared.keep

        async def keep_own(usage: Usage) -> None:
            if joined.owned is not None:
                await keep(usage)

        def take(epoch: int, block: int, output: GeneratedOutput) -> OwnedStream:
            joined.owned = self._own(request, renderer, place, (epoch, block), lambda: output)
            return joined.owned

        request.prepared = replace(request.prepared, keep=keep_own)
        request.exchange.headers.append((b"idempotent-replayed", b"true"))
        following = Following(
            store=self._desk.store,
            tenant_id=request.tenant.id,
            stream_id=place.stream,
            cursor=place.cursor,
            poll_s=self._config.follow_s,
            workers=self._workers,
            note_end=ended.set,
            take=take,
        )
        request.followed = FollowedAnswer(following, found)

    def _own(
        self,
        request: ClientRequest[PreparedGeneration],
        renderer: NumberedRenderer,
        place: _Place,
        begins: tuple[int, int],
        output: Callable[[], Output | None],
    ) -> OwnedStream:
        """Record the request's answer from an epoch and a block on."""
        owned = OwnedStream(request.tenant.id, place.stream, begins, place.num_choices, request.place.end_if_open)
        num_prompts = len(request.prepared.specs)

        def num_cached() -> Sequence[int]:
            found = output()
            if not isinstance(found, Fanout):
                return (0,) * num_prompts
            return [generation.transcript.num_cached_tokens for generation in found.generations]

        owned.num_cached, owned.ended_unix_s = num_cached, renderer.answer.wall_clock
        renderer.recorder = owned
        request.detach_s = request.tenant.plan.detach_s
        self._desk.own(owned)
        return owned


def _identity(request: ClientRequest[PreparedGeneration], key: str) -> AnswerIdentity:
    """Identity of a new answer; with an idempotency key its seed and id are functions of it."""
    prepared, secret = request.prepared, request.tenant.cache_salt
    identity = replace(prepared.identity, request_ids=tuple(new_id("gen") for _ in prepared.specs))
    if not key:
        return identity
    seed = derived_seed(secret, key) if prepared.options.seed is None else identity.seed
    return replace(identity, seed=seed, answer_id=derived_id(secret, key, identity.answer_id))


def _can_be_recorded(request: ClientRequest[PreparedGeneration]) -> bool:
    """A record has tokens: no log probabilities, and nothing that a content policy made of them."""
    options = request.prepared.options
    logprobs = options.num_logprobs, options.num_prompt_logprobs, options.num_echo_logprobs
    return request.screen is None and logprobs == (None, None, None)


def _prepare(request: ClientRequest[PreparedGeneration], identity: AnswerIdentity, place: _Place) -> NumberedRenderer:
    """Give the request the identity of its answer, and a renderer whose events have ids."""
    prepared = request.prepared.rebuilt(identity)
    renderer = NumberedRenderer(prepared.renderer, place.tag, place.num_choices, place.cursor)
    request.prepared = replace(prepared, renderer=renderer)
    return renderer


def _fingerprint(sub_key: bytes, path: str, body: bytes) -> str:
    return hmac.new(sub_key, path.encode() + b"\0" + body, hashlib.sha256).hexdigest()
