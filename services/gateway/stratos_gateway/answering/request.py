"""The client's request: one record from its key to its bill.

The edge opens it, preparation fills ``prepared``, a source gives ``output``; steps read it before and after.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.types import Send

from stratos.common.errors import StratosError
from stratos.core.requests.continuation import ContinuationState, TokenOf
from stratos.core.requests.terms import RequestTerms
from stratos.core.tenant import Tenant
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.access.concurrency import Place
from stratos_gateway.answering.output import AnswerCheck, ChunkOutput, Chunks, Output
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.http.exchange import Exchange
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.rendering import AnswerIdentity, Renderer
from stratos_gateway.openai.requests import GenerationBody, GenerationOptions

IGNORED_HEADER = b"x-stratos-ignored"
"""Names fields of a request that were accepted and mean nothing here."""


_MAX_UNKNOWN = 20
_UNPRINTABLE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


def note_unknown(exchange: Exchange, names: Sequence[str]) -> None:
    """Name fields that are not known, which are the client's texts, in a header of their own."""
    if names:
        shown = [_UNPRINTABLE.sub("?", name[:100]) for name in names[:_MAX_UNKNOWN]]
        exchange.headers.append((IGNORED_HEADER, ", ".join(shown).encode()))


def ignored_names(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Fields that an answer's headers name as ignored, for a client that sees no headers."""
    return ", ".join(value.decode() for name, value in headers if name == IGNORED_HEADER)


RESUMED = "stratos.stream"
"""Key of an ASGI scope whose client comes back to the stream of this id."""
LINE = "stratos.batch_line"
"""Key of an ASGI scope that is a line of a batch: its ``BatchLine``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """A request that no client sends: what makes it the same whichever gateway computes it, and however often."""

    name: str
    """Name of the batch and the line."""
    epoch: int
    """Number of the try, over all gateways."""
    created_unix_s: int
    arrived_unix_ms: int
    """When it was begun first: its bill is of that moment, also where another gateway computes it on another day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Whatever the route: the facts that steps need."""

    model: str
    """Name that the client uses."""
    operation: str
    """Its kind, in traces."""
    num_tokens: int
    """Tokens of its prompts and of its longest possible output."""
    num_sequences: int
    texts: Sequence[str]
    """Texts of its input, for content policies."""
    refusal: Callable[[], StratosError | None]
    """Why its model is not served any more."""
    base_model: str = ""
    """Served name of the base model that answers, a label; empty where none does."""
    model_digest: str = ""
    """Digest of that model; empty where no worker is asked."""
    constrained: str = ""
    """Kind of the grammar that its output obeys."""
    reasoning_budget: int | None = None
    """Most tokens of reasoning, which its output keeps to."""

    @property
    def ignored(self) -> Sequence[str]:
        """Fields of its body that mean nothing here, by names of ours."""
        return ()

    def describe(self, exchange: Exchange) -> None:
        """Note in the access log, in the trace and in a header what is known before it runs."""
        exchange.facts.model, exchange.facts.base_model = self.model, self.base_model
        if self.ignored:
            exchange.headers.append((IGNORED_HEADER, ", ".join(self.ignored).encode()))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedGeneration(Prepared):
    """A request of a generation route."""

    body: GenerationBody
    specs: tuple[GenerationSpec, ...]
    """One per prompt."""
    renderer: Renderer
    tokenizer: Tokenizer
    """Tokenizer of the base model."""
    keep: Callable[[Usage], Awaitable[None]]
    """Keeps the answer before its client is told of its end; raises ``StratosError`` where that fails."""
    identity: AnswerIdentity
    rebuilt: Callable[[AnswerIdentity], PreparedGeneration]
    """The same request with another identity, of the same revision of the model."""
    revised: Callable[[dict[str, Any], str], Awaitable[PreparedGeneration]]
    """The same request, from its body on, as another revision of the model reads it, by digest."""
    token_of: TokenOf | None = None
    """``None`` where no other answer can go on behind this one."""
    continued: ContinuationState | None = None
    """The earlier answer that this one goes on from."""
    check: AnswerCheck | None = None
    """Looks at its end whether it obeys; ``None`` where nothing is to."""

    @property
    def ignored(self) -> Sequence[str]:
        """Fields that its dialect takes and drops."""
        return self.body.ignored

    @property
    def options(self) -> GenerationOptions:
        """Options that all generation routes have."""
        return self.body.options

    @property
    def has_given_seed(self) -> bool:
        """Its seed is the client's, or that of the answer that it goes on from: no other one may take its place."""
        return self.options.seed is not None or self.continued is not None


P = TypeVar("P", bound=Prepared)


class ContentScreen(Protocol):
    """The tenant's content policy at work on one request."""

    async def check_input(self, texts: Sequence[str], param: str) -> None:
        """Refuse what the policy does not let in; raises ``ContentRefused`` or ``ContentCheckDown``."""

    async def verdict(self, text: str) -> Mapping[str, bool]:
        """Rules of the policy, and whether a text breaks each; raises ``ContentCheckDown``."""
        ...

    def shown(self, output: ChunkOutput) -> Chunks:
        """An output as the policy lets it out."""
        ...


class RecordedAnswer(Protocol):
    """An answer of which a record was there before the request."""

    def open(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[ChunkOutput]:
        """The answer from its first token on, at whichever gateway it is generated."""
        ...


async def _open() -> None:
    """Everything may be sent."""


async def _redeem_nothing(has_output: bool) -> None:
    """It goes on from no other answer."""


@dataclass(slots=True, kw_only=True)
class ClientRequest(Generic[P]):
    """Belongs to the task that answers it; times are monotonic seconds."""

    http: Request
    send: Send
    exchange: Exchange
    tenant: Tenant
    place: Place
    arrival_s: float
    deadline_s: float
    """When its first token is due."""
    end_s: float
    """When its answer is due."""
    received_s: float
    """When the last byte of its body was there, from which promised times count: how slowly a client sends is not the
    platform's. Deadlines and ageing count from the arrival."""
    has_answered: bool = False
    """The client has got a part of an answer, so no other source can follow; comments of a stream are none."""
    prepared: P = field(init=False)
    notices: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Headers that go out together with those of the tenant's limits."""
    num_claimed_tokens: int = 0
    """Tokens that count for the tenant's limits as long as no output says what it took."""
    screen: ContentScreen | None = None
    """``None`` where its tenant's plan names no policy."""
    declined: StratosError | None = None
    """Why the last source that was tried gave way to the next one."""
    output: Output | None = None
    """The answer; ``None`` before there is one, and again where its source gave way or it counts as nothing."""
    error: BaseException | None = None
    """Why it ended without its whole answer: what steps find raised around them, or what was told within a stream."""
    body_text: bytes = b""
    """Its body as JSON of sorted keys, where a record of the answer is wanted; it names the model that is asked."""
    asked_text: bytes = b""
    """The same as the client sent it, where several models may answer."""
    stream_id: str = ""
    """Id of the record of its answer; empty without one."""
    detach_s: float = 0.0
    """Seconds that its answer goes on after its client left."""
    fixed_id: str = ""
    """Id of its answer, by which it is billed, where that must be the same however often it is computed."""
    followed: RecordedAnswer | None = None
    """Answer that has a record already, which this request is shown."""
    is_only_shown: bool = False
    """``followed`` is whole, or has output: nothing is computed for it here, unless the gateway that does is lost."""
    has_output: bool = False
    """Part of ``followed`` has been generated."""
    redeem: Callable[[bool], Awaitable[None]] = _redeem_nothing
    """Redeems the token that it goes on with, before anything is computed for it here; whether there is output already.
    Raises the client's answer."""
    until_open: Callable[[], Awaitable[None]] = _open
    """Waits while nothing may be sent; raises what ended the request in that time."""
    yields_after_s: float = 0.0
    """Longest wait for a worker, where another model is asked next; 0 where none is."""
    yields_to: tuple[type[StratosError], ...] = ()
    """Refusals of this model with which that one is asked."""
    kept_body: bytes = b""
    """Its body as JSON until an answer begins, where its model has several revisions."""
    superseded: list[str] = field(default_factory=list)
    """Digests of revisions whose last worker left while it waited."""
    trail: dict[str, Any] = field(default_factory=dict)
    """Sections of its receipt (``core.ledger.receipt``), each noted where its facts are decided."""
    whole: bytes = b""
    """Its answer where that is one message, about to be sent."""
    sent: list[ChoiceChunk] = field(default_factory=list)
    """Chunks that the client was sent so far, where ``when_sent`` wants them."""
    when_sent: Callable[[Sequence[ChoiceChunk]], None] | None = None
    """Takes the chunks of an answer that was sent whole."""

    def begin_again(self) -> None:
        """Forget what the last model has noted."""
        self.output = self.error = self.declined = self.followed = self.exchange.stream = None
        self.stream_id, self.has_output, self.is_only_shown = "", False, False
        self.num_claimed_tokens, self.detach_s = 0, 0.0
        self.notices.clear()
        self.trail.clear()

    @property
    def is_silent(self) -> bool:
        """Its client was sent nothing."""
        stream = self.exchange.stream
        return not self.has_answered and (stream is None or not stream.is_started)

    @property
    def is_exact(self) -> bool:
        """Its answer has to be what a worker says: it has a record, from which any gateway goes on with it, or goes on
        from an earlier answer. No endpoint and no cache answers it."""
        prepared = self.prepared
        return bool(self.stream_id) or (isinstance(prepared, PreparedGeneration) and prepared.continued is not None)

    def dated(self, terms: RequestTerms) -> RequestTerms:
        """``terms`` with the request's times."""
        return terms.dated(self.arrival_s, self.deadline_s, self.end_s)

    def begin_answer(self, output: ChunkOutput) -> None:
        """Note that the first part of an answer is about to be sent."""
        if not self.has_answered:
            self.has_answered, self.kept_body = True, b""
            self.exchange.headers += output.headers

    def note_sent(self, chunks: Iterable[ChoiceChunk]) -> None:
        """Keep what the client was sent, where it is wanted at the end; nothing is read from ``chunks`` else."""
        if self.when_sent is not None:
            self.sent.extend(chunks)

    def end_whole(self) -> None:
        """Note that the whole answer was sent."""
        if self.when_sent is not None:
            self.when_sent(self.sent)

    def fail_in_stream(self, error: StratosError) -> None:
        """Note an error that ends a stream which has begun."""
        self.exchange.name_param(error)
        self.error = error
        self.exchange.note_error(error)
