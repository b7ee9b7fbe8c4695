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
    """Memory of one connection: its last response that ended well, as it would be stored."""

    max_bytes: int
    """A larger one is not remembered."""
    _id: str = ""
    _content: bytes | None = None

    def keep(self, response_id: str, content: bytes) -> None:
        """Remember a response in place of the one before."""
        self._id, self._content = response_id, content if len(content) <= self.max_bytes else None

    def find(self, response_id: str) -> bytes | None:
        """The response of this id."""
        return self._content if response_id == self._id else None

    def is_too_large(self, response_id: str) -> bool:
        """Whether the response of this id was the last one, and is not remembered for its size."""
        return response_id == self._id and self._content is None


LOCAL: ContextVar[LocalResponse | None] = ContextVar("stratos.responses.local", default=None)
"""Memory of the connection that the current task's request came from; ``None`` where it remembers nothing."""
