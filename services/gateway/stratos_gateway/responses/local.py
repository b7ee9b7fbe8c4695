"""A kept response, and the last one of a connection, from which its next request may go on without any store."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from stratos_gateway.responses.stored_items import Item


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response, and everything that was said before it."""

    response: dict[str, Any]
    input: list[Item]

    @property
    def conversation(self) -> list[Item]:
        """All items up to its end."""
        return [*self.input, *self.response["output"]]


@dataclass(slots=True)
class LocalResponse:
    """Memory of one connection: its last response that ended well."""

    kept: KeptResponse | None = None

    def find(self, response_id: str) -> KeptResponse | None:
        """The response of this id."""
        kept = self.kept
        return kept if kept is not None and kept.response["id"] == response_id else None


LOCAL: ContextVar[LocalResponse | None] = ContextVar("stratos.responses.local", default=None)
"""Memory of the connection that the current task's request came from; ``None`` where it remembers nothing."""
