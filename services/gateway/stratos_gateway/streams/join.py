"""A request meets its record: a new one is made, or the answer that is there already is shown, and gone on with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import orjson
from redis.exceptions import RedisError

from stratos.common.errors import (
    BadRequest,
    ConcurrencyLimited,
    DependencyDown,
    KeyReused,
    StratosError,
    StreamCancelled,
    StreamGone,
    StreamMoved,
)
from stratos.core.placement import Placement
from stratos.store.sealed.moved_texts import RecordUnread
from stratos.store.sealed.stream_store import Found, StreamAsk, StreamRecord
from stratos_gateway.answering.chain import note_recorded
from stratos_gateway.answering.output import Output
from stratos_gateway.answering.request import RESUMED, ClientRequest, PreparedGeneration
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.generation.source import GeneratedOutput, WorkersSource
from stratos_gateway.http.body import Leniently
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import Usage
from stratos_gateway.openai.rendering import AnswerIdentity
from stratos_gateway.preparation.options import num_prompt_logprobs
from stratos_gateway.streams.asking import (
    NO_STREAM,
    STREAM_HEADER,
    body_fingerprint,
    cursor_tag,
    idempotency_key,
    last_event_id,
    response_id,
    stream_id,
)
from stratos_gateway.streams.codec import StreamHead, decode_head, encode_head
from stratos_gateway.streams.cursor import FROM_THE_START, Cursor, parse_cursor
from stratos_gateway.streams.desk import StreamDesk
from stratos_gateway.streams.followed import FollowedAnswer, Following
from stratos_gateway.streams.identity import EndTime, can_be_recorded, new_identity
from stratos_gateway.streams.numbering import NumberedRenderer
from stratos_gateway.streams.owned import GIVEN_UP, OwnedStream, Ownership
from stratos_gateway.streams.settings import StreamsConfig
from stratos_gateway.streams.standing import AllSeen, StandingAnswer, keep_nothing, standing_response

RUN = "stratos.background_run"
"""Key of an ASGI scope in which a gateway answers a stream without a client: its ``BackgroundRun``."""
SEEN_EVENTS = "stratos.seen_events"
"""Key of an ASGI scope whose client says how many events of the record it has."""
_UNREAD = "the record of this stream cannot be read or written"


@dataclass(slots=True)
class BackgroundRun:
    """An answer that is computed without a client."""

    error: BaseException | None = None
    """Why it ended early."""


@dataclass(slots=True)
class Joined:
    """A request and its record."""

    owned: OwnedStream | None = None
    run: BackgroundRun | None = None

    def leave(self, error: BaseException | None = None) -> None:
        """The request has ended: what it did not finish any gateway may."""
        if self.run is not None:
            self.run.error = error
        if self.owned is not None and not self.owned.ends and not self.owned.is_lost:
            self.owned.end(GIVEN_UP)


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
        on_queued: told that a stream without a client waits.
        unix_s: seconds since the epoch, as for answers without a record.
    """

    def __init__(
        self,
        desk: StreamDesk,
        workers: WorkersSource,
        config: StreamsConfig,
        metrics: GatewayMetrics,
        on_queued: Callable[[], None] = lambda: None,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._on_queued = on_queued
        self._unix_s = unix_s
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
        http, tenant, is_background = request.http, request.tenant, request.prepared.body.is_background
        key, resumed = idempotency_key(http.headers), http.scope.get(RESUMED, "")
        # Who has seen a part of an answer is never given all of it once more.
        has_seen = bool(resumed or (key and last_event_id(http.headers)))
        identity, sub_key = new_identity(request, key), self._desk.store.key(tenant.id)
        if sub_key is None or not can_be_recorded(request) or len(request.body_text) > self._config.max_body_bytes:
            if is_background:
                raise self._no_background(sub_key)
            if has_seen and sub_key is None:
                raise DependencyDown(_UNREAD)
            if has_seen and request.prepared.options.stream:
                raise StreamGone("this answer can have no record any more")
            self._without(request, identity)
            return None
        stream = resumed or stream_id(sub_key, key)
        if is_background:
            identity = replace(identity, answer_id=response_id(stream))
        place = self._place(request, sub_key, stream, is_known=bool(resumed or key))
        head = b""
        if not (resumed or place.cursor.is_whole):
            head = encode_head(
                StreamHead(
                    path=http.url.path,
                    body=request.body_text,
                    identity=identity,
                    tenant_name=tenant.name,
                    key_id=tenant.key_id,
                )
            )
        fingerprint = (
            "" if resumed else body_fingerprint(sub_key, http.url.path, request.asked_text or request.body_text)
        )
        ask = StreamAsk(
            tenant_id=tenant.id,
            stream_id=stream,
            fingerprint=fingerprint,
            head=head,
            may_take=not (is_background or place.cursor.is_whole) or RUN in http.scope,
            is_queued=is_background,
            within_s=self._config.call_s,
        )
        try:
            found = await self._desk.store.open(ask)
        except RecordUnread:
            raise  # there is one, so a second generation would be a second bill
        except (DependencyDown, RedisError, TimeoutError) as error:
            if has_seen or is_background:
                raise DependencyDown(_UNREAD) from error
            self._without(request, identity)
            return None
        if found.found is Found.NONE and head:  # Redis is short of memory, or the tenant's data key has gone in between
            if has_seen or is_background:
                raise DependencyDown(_UNREAD)
            self._without(request, identity)
            return None
        return await self._joined(request, place, found, identity)

    def _no_background(self, sub_key: bytes | None) -> StratosError:
        """Why a response without a client cannot be."""
        if sub_key is None:
            return DependencyDown("the tenant has no data key yet")
        text = "background: its answer cannot be kept: the plan has a content policy, "
        text += f"or the body is larger than {self._config.max_body_bytes} bytes"
        return BadRequest(text, param="background", code="unsupported_parameter")

    def _place(
        self, request: ClientRequest[PreparedGeneration], sub_key: bytes, stream: str, *, is_known: bool
    ) -> _Place:
        tag, options = cursor_tag(sub_key, stream), request.prepared.options
        num_choices, cursor = options.n * len(request.prepared.specs), FROM_THE_START
        if options.stream and is_known:
            cursor = parse_cursor(last_event_id(request.http.headers), tag, num_choices)
            if (num_seen := request.http.scope.get(SEEN_EVENTS)) is not None:
                cursor = replace(cursor, num_skipped=num_seen)
        return _Place(stream, tag, num_choices, cursor)

    def _without(self, request: ClientRequest[PreparedGeneration], identity: AnswerIdentity) -> None:
        self._metrics.stream_records.labels("none").inc()
        request.exchange.headers.append((STREAM_HEADER, NO_STREAM))
        request.prepared = request.prepared.rebuilt(identity)

    async def drop(self, joined: Joined) -> None:
        """Remove the record of a request that another model is asked with: it has nothing, and none was told of it."""
        if joined.owned is None or joined.owned.is_lost:
            return
        owned = joined.owned
        self._desk.disown(owned)
        try:
            async with asyncio.timeout(self._config.call_s):
                await self._desk.store.drop(owned.tenant_id, owned.stream_id, owned.epoch)
        except (DependencyDown, RedisError, TimeoutError):
            pass  # its lease ends by itself

    async def _joined(
        self, request: ClientRequest[PreparedGeneration], place: _Place, found: StreamRecord, identity: AnswerIdentity
    ) -> Joined:
        if found.found is Found.OTHER:
            raise KeyReused("this idempotency key was used with another body")
        if found.found is Found.FULL:
            raise ConcurrencyLimited(f"{self._config.background_queued} background responses of this tenant are open")
        run, is_background = request.http.scope.get(RUN), request.prepared.body.is_background
        if found.found is Found.NONE:
            raise StreamGone("this stream is kept no more")
        if run is not None and found.found is not Found.TAKEN:
            raise StreamMoved("another gateway has this stream, or it has ended")
        request.stream_id, request.has_output = place.stream, bool(found.blocks)
        is_taken_care_of = request.has_output if found.found is Found.LIVE else found.found is not Found.TAKEN
        request.is_only_shown = is_taken_care_of and found.found is not Found.MADE
        request.exchange.headers.append((STREAM_HEADER, place.stream.encode()))
        joined = Joined(run=run)
        if place.cursor.is_whole:
            request.is_only_shown, request.followed = True, AllSeen()
            return joined
        if is_background and RESUMED not in request.http.scope:
            await self._queue(request, place, found, identity, joined)
            return joined
        if found.found is Found.CANCELLED:
            raise StreamCancelled("this stream was cancelled")
        if found.found is not Found.MADE:
            await self._show(request, place, found, joined)
            return joined
        self._metrics.stream_records.labels("made").inc()
        renderer = _prepare(request, replace(identity, wall_clock=EndTime(self._unix_s)), place)
        joined.owned = self._own(request, renderer, place, Ownership(number=found.number), lambda: request.output)
        return joined

    async def _queue(
        self,
        request: ClientRequest[PreparedGeneration],
        place: _Place,
        found: StreamRecord,
        identity: AnswerIdentity,
        joined: Joined,
    ) -> None:
        """Let a background response be told as it stands, or its stream be followed."""
        if found.found is Found.MADE:
            self._metrics.stream_records.labels("queued").inc()
            head = StreamHead(path="", body=b"", identity=identity)
            found = replace(found, found=Found.LIVE, head=encode_head(head))
            self._on_queued()
        if request.prepared.options.stream:
            return await self._show(request, place, found, joined)
        if (begun := decode_head(found.head)) is not None:
            await _revise(request, begun)
        response = standing_response(request.prepared, found)
        answer = request.followed = StandingAnswer(request.prepared, response)
        request.prepared = replace(request.prepared, renderer=answer.renderer, keep=keep_nothing)

    async def _show(
        self, request: ClientRequest[PreparedGeneration], place: _Place, found: StreamRecord, joined: Joined
    ) -> None:
        """Let the request be answered from its record."""
        head = decode_head(found.head)
        if head is None:
            raise StreamGone("the record of this stream cannot be read")
        self._metrics.stream_records.labels("taken" if found.found is Found.TAKEN else "replayed").inc()
        await _revise(request, head)
        ended = EndTime(self._unix_s)
        renderer = _prepare(request, replace(head.identity, wall_clock=ended), place)
        keep = request.prepared.keep

        async def keep_own(usage: Usage) -> None:
            if joined.owned is not None:
                await keep(usage)

        def take(begins: Ownership, output: GeneratedOutput) -> OwnedStream:
            joined.owned = self._own(request, renderer, place, begins, lambda: output)
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
            may_take=joined.run is not None or not request.prepared.body.is_background,
            may_attach=self._config.attach_s > 0,
            take=take,
        )
        request.followed = FollowedAnswer(following, found)

    def _own(
        self,
        request: ClientRequest[PreparedGeneration],
        renderer: NumberedRenderer,
        place: _Place,
        begins: Ownership,
        output: Callable[[], Output | None],
    ) -> OwnedStream:
        """Record the request's answer from there on."""
        owned = OwnedStream(
            request.tenant.id, place.stream, begins, place.num_choices, request.place.end_if_open,
            has_logprobs=request.prepared.options.num_logprobs is not None,
            has_prompt=num_prompt_logprobs(request.prepared.options) is not None,
        )  # fmt: skip
        num_prompts = len(request.prepared.specs)

        def num_cached() -> Sequence[int]:
            found = output()
            if not isinstance(found, Fanout):
                return (0,) * num_prompts
            return [generation.transcript.num_cached_tokens for generation in found.generations]

        def places() -> Sequence[Placement | None]:
            found = output()
            known = [generation.runs_at for generation in found.generations] if isinstance(found, Fanout) else []
            return known if any(known) else ()

        def ids() -> Sequence[int]:
            found = output()
            assert isinstance(found, Fanout), "the only one that notes tokens without chunks"
            return found.generations[0].transcript.choices[0].ids

        owned.ids, owned.num_cached, owned.ended_unix_s = ids, num_cached, renderer.answer.wall_clock
        if self._config.attach_s:
            owned.places = places
        owned.ends_with_record = RUN in request.http.scope
        renderer.recorder = owned
        request.detach_s = request.tenant.plan.detach_s
        self._desk.own(owned)
        return owned


async def _revise(request: ClientRequest[PreparedGeneration], head: StreamHead) -> None:
    """Let the request be read by the revision that its answer began with: template, parser and bounds are that one's.

    Raises:
        StratosError: that revision is served no more, or refuses it.
    """
    digest, is_chosen = head.identity.model_digest, bool(request.asked_text) and head.body != request.body_text
    if is_chosen or digest != request.prepared.model_digest:
        body = orjson.loads(head.body if is_chosen else request.body_text)
        with Leniently(is_lenient=True):  # as the gateway may have been that took it
            request.prepared = await request.prepared.revised(body, digest)
        request.exchange.facts.base_model = request.prepared.base_model
    if is_chosen:
        note_recorded(request, request.prepared.model)


def _prepare(request: ClientRequest[PreparedGeneration], identity: AnswerIdentity, place: _Place) -> NumberedRenderer:
    """Give the request the identity of its answer, and a renderer whose events have ids."""
    prepared = request.prepared.rebuilt(identity)
    renderer = NumberedRenderer(prepared.renderer, place.tag, place.num_choices, place.cursor)
    request.prepared = replace(prepared, renderer=renderer)
    return renderer
