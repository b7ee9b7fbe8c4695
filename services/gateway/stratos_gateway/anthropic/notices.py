"""Fields that a client may send and that mean nothing here; answers name them in a header."""

from __future__ import annotations

from stratos_gateway.openai.fields import Fields


class Ignored:
    """Names of one request, each once."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        """Note a field; its name is ours, never the client's text."""
        self._names[name] = None

    def take(self, fields: Fields, *names: str) -> None:
        """Take fields that may be there."""
        for name in names:
            if fields.take(name) is not None:
                self.add(name)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in the order of the request."""
        return tuple(self._names)
