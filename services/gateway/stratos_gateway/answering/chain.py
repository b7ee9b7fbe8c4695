"""Fallback chains: ``models: [a, b]`` asks for the first model that has room, before anything is sent.

    all names are resolved ──▶ a is asked, and gives up after ``YIELDS_AFTER_S`` ──▶ b is asked, which waits as usual

A name that the key may not use refuses the whole request, whichever model would have answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratos.common.errors import (
    AdapterUnavailable,
    BadRequest,
    DependencyDown,
    Draining,
    FeatureUnavailable,
    Overloaded,
    QueueTimeout,
    WaitTooLong,
    WorkerLost,
)
from stratos_gateway.answering.request import ClientRequest

FIELD = "models"
MAX_MODELS = 8
YIELDS_AFTER_S = 1.0
"""Longest wait for a worker of a model that is not the last one."""
_NO_ROOM = (
    AdapterUnavailable, DependencyDown, Draining, FeatureUnavailable, Overloaded, QueueTimeout, WaitTooLong, WorkerLost,
)  # fmt: skip
"""Refusals of one model that say nothing about the next one."""
MODEL_HEADER, REFUSED_HEADER = b"x-stratos-model", b"x-stratos-model-refused"


@dataclass(slots=True)
class FallbackChain:
    """Models that a request names, and those that refused it so far."""

    names: tuple[str, ...]
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Name and code of the refusal."""

    def headers(self, name: str = "") -> list[tuple[bytes, bytes]]:
        """Headers that say which model answers, where one does, and which ones refused."""
        shown = [(MODEL_HEADER, _printable(name))] if name else []
        if self.refused:
            told = ", ".join(f"{_printable(one).decode()}={code}" for one, code in self.refused)
            shown.append((REFUSED_HEADER, told.encode()))
        return shown

    def section(self, name: str) -> Mapping[str, Any]:
        """The choice as the receipt tells it."""
        return {"asked": list(self.names), "model": name, "refused": [list(pair) for pair in self.refused]}


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
    for other in ("continuation_token", "background"):
        if body.get(other):
            text = f"{FIELD} cannot be combined with {other}: name the one model that is to go on"
            raise BadRequest(text, param=FIELD, code="unsupported_parameter")
    return FallbackChain(tuple(names))


def bodies_of(chain: FallbackChain, body: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """The body once for each model, as if it named that one alone."""
    rest = {name: value for name, value in body.items() if name != FIELD}
    return [{**rest, "model": name} for name in chain.names]


def passes_on(request: ClientRequest[Any]) -> bool:
    """Whether the next model of a chain is asked: this one has no room, and the client was sent nothing."""
    stream = request.exchange.stream
    is_silent = not request.has_answered and (stream is None or not stream.is_started)
    return request.yields_after_s > 0 and is_silent and isinstance(request.error, _NO_ROOM)


def _printable(name: str) -> bytes:
    return name[:100].encode("ascii", "replace")
