"""Fallback chains: ``models: [a, b]`` asks for the first model that has room, before anything is sent.

    all names are resolved ──▶ a is asked, and gives up after ``YIELDS_AFTER_S`` ──▶ b is asked, which waits as usual

Rules make such a chain of the model ``auto``, too: see ``choosing``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stratos.common.errors import (
    AdapterUnavailable,
    BadRequest,
    ContextLengthExceeded,
    DependencyDown,
    Draining,
    FeatureUnavailable,
    Overloaded,
    QueueTimeout,
    StratosError,
    WaitTooLong,
    WorkerLost,
)
from stratos.core.tenant import Tenant
from stratos_gateway.answering.request import ClientRequest

FIELD = "models"
MAX_MODELS = 8
YIELDS_AFTER_S = 1.0
"""Longest wait for a worker of a model that is not the last one."""
_NO_ROOM = (
    AdapterUnavailable, DependencyDown, Draining, FeatureUnavailable, Overloaded, QueueTimeout, WaitTooLong, WorkerLost,
)  # fmt: skip
"""Refusals of one model that say nothing about the next one."""
MODEL_HEADER, REFUSED_HEADER, RULE_HEADER = b"x-stratos-model", b"x-stratos-model-refused", b"x-stratos-model-rule"


class Superseded(QueueTimeout):
    """The revision that a request waited for has no workers, and a newer one has; told to a client as a timeout.

    Args:
        digest: of that revision.
    """

    def __init__(self, digest: str) -> None:
        super().__init__("the last worker of this revision has left")
        self.digest = digest


def _uncounted(name: str, reason: str) -> None:
    """Count no answer."""


@dataclass(slots=True)
class FallbackChain:
    """Models that a request names, or that rules chose for it, and those that refused it so far."""

    names: tuple[str, ...]
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Name and code of the refusal."""
    rule: str = ""
    """Rule that chose; empty where the client did."""
    reason: str = ""
    """Why the first one is the first; empty where the client said so."""
    count: Callable[[str, str], None] = _uncounted
    """Called with the model that answered, and why it was that one."""

    def headers(self, name: str = "") -> list[tuple[bytes, bytes]]:
        """Headers that say which model answers, where one does, and which ones refused."""
        shown = [(MODEL_HEADER, _printable(name))] if name else []
        if self.rule:
            shown.append((RULE_HEADER, self.rule.encode()))
        if self.refused:
            told = ", ".join(f"{_printable(one).decode()}={code}" for one, code in self.refused)
            shown.append((REFUSED_HEADER, told.encode()))
        return shown

    def section(self, name: str) -> Mapping[str, Any]:
        """The choice as the receipt tells it."""
        chosen = {"rule": self.rule, "reason": self.reason} if self.rule else {}
        return {"asked": list(self.names), **chosen, "model": name, "refused": [list(pair) for pair in self.refused]}

    @property
    def yields_to(self) -> tuple[type[StratosError], ...]:
        """Refusals that pass a request on; a prompt too long for a model that rules chose is no client's error."""
        return (*_NO_ROOM, ContextLengthExceeded) if self.rule else _NO_ROOM

    def note_answer(self, name: str) -> None:
        """Count the answer of a model."""
        self.count(name, "fallback" if self.refused else self.reason)


class ChainSource(Protocol):
    """Where a route learns which models a request may be answered by."""

    def names_several(self, tenant: Tenant, body: Mapping[str, Any]) -> bool:
        """Whether a body may be answered by other models than one that it names; quick, raises nothing."""
        ...

    async def chain(self, request: ClientRequest[Any], body: Mapping[str, Any]) -> FallbackChain:
        """The models that such a body may be answered by; raises ``StratosError`` where there are none."""
        ...


def chain_of(body: Mapping[str, Any]) -> FallbackChain:
    """The chain that a body names.

    Raises:
        BadRequest: it is none, or stands beside a field that it cannot be combined with.
    """
    names = body[FIELD]
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise BadRequest(f"{FIELD} must be a list of names", param=FIELD)
    if not 1 <= len(names) <= MAX_MODELS:
        raise BadRequest(f"{FIELD} must have 1 to {MAX_MODELS} names", param=FIELD)
    if len(set(names)) < len(names):
        raise BadRequest(f"{FIELD} names a model twice", param=FIELD)
    if body.get("model") not in (None, names[0]):
        raise BadRequest(f"beside {FIELD}, model must be absent or the first of them", param="model")
    return FallbackChain(tuple(names))


def check_alone(body: Mapping[str, Any], param: str) -> None:
    """Refuse what goes on with an answer, or begins without a client, where several models may answer.

    Args:
        body: of the request.
        param: field that lets several answer.

    Raises:
        BadRequest: it is of one model.
    """
    for name in ("continuation_token", "background"):
        if body.get(name):
            what = "models" if param == FIELD else "this model"
            text = f"{what} cannot be combined with {name}: name the one model that is to go on"
            raise BadRequest(text, param=param, code="unsupported_parameter")


def bodies_of(chain: FallbackChain, body: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """The body once for each model, as if it named that one alone."""
    rest = {name: value for name, value in body.items() if name != FIELD}
    return [{**rest, "model": name} for name in chain.names]


def passes_on(request: ClientRequest[Any]) -> bool:
    """Whether the next model, or a newer revision, is asked: this one refused for a reason of its own, and the client
    was sent nothing."""
    if isinstance(request.error, Superseded):
        return request.is_silent
    return request.yields_after_s > 0 and request.is_silent and isinstance(request.error, request.yields_to)


def note_recorded(request: ClientRequest[Any], name: str) -> None:
    """Tell that the answer is another model's than the one that is asked: its record had it already."""
    headers = request.exchange.headers
    headers[:] = [(key, _printable(name) if key == MODEL_HEADER else value) for key, value in headers]
    if (choice := request.trail.get("choice")) is not None:
        request.trail["choice"] = {**choice, "model": name}
    request.yields_after_s = 0.0


def _printable(name: str) -> bytes:
    return name[:100].encode("ascii", "replace")
