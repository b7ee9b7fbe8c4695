"""The ribs of every route: steps around a request, sources of its answer, preparation of its body."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from stratos.common.changed import record
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos_gateway.answering.output import Output
from stratos_gateway.answering.request import ClientRequest, Prepared

P_co = TypeVar("P_co", bound=Prepared, covariant=True)
O_co = TypeVar("O_co", bound=Output, covariant=True)
O_contra = TypeVar("O_contra", bound=Output, contravariant=True)


class Preparer(Protocol[P_co]):
    """From the body of a route to what runs; nothing waits for workers."""

    @property
    def prompt_param(self) -> str:
        """The route's name for its prompt."""
        ...

    async def prepare(self, body: dict[str, Any], tenant: Tenant, trace: TraceContext, revision: str = "") -> P_co:
        """Check, resolve and encode; raises ``StratosError`` with the client's answer.

        Args:
            body: of the request.
            tenant: whose key it carries.
            trace: of the request.
            revision: digest of the model that its answer began with; empty takes the one that new requests get.
        """
        ...


@record(frozen=True, slots=True, kw_only=False)
class AtEnd:
    """A step that only settles."""

    settle: Callable[[], None]
    """Called on the way out, however the request ended."""


Around = AbstractAsyncContextManager[None] | AtEnd


class Step(Protocol):
    """One concern of every request, around the search for its answer."""

    def around(self, request: ClientRequest[Any]) -> Around | None:
        """Refuse on the way in, settle on the way out, however the request ends; ``None`` does neither.

        Most requests need few of the steps, and a context costs each as much as a chunk of its answer.
        """
        ...


class Source(Protocol[O_co]):
    """One way to get an answer."""

    def open(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[O_co | None] | None:
        """The answer while it is written; ``None``, at once or as the answer, leaves the request to the next source.

        A source whose answer fails before the client has got anything may suppress the error on the way out: the next
        one follows.
        """
        ...


class AnswerSender(Protocol[O_contra]):
    """Writes answers in the form of a route."""

    def waiting(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[None] | None:
        """Context of the search for an answer: comments that its client hears until then; ``None`` says nothing."""
        ...

    async def send(self, request: ClientRequest[Any], output: O_contra) -> None:
        """Write an answer to the client; raises what ``output`` raises."""
        ...
