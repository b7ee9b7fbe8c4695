"""Fields that a client may send and that mean nothing here; answers name them in a header."""

from __future__ import annotations

from typing import Any

from stratos.common.errors import BadRequest
from stratos_gateway.openai.fields import Fields, is_listed

_TTLS = ("5m", "1h")


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

    def take_cache_control(self, fields: Fields, param: str) -> None:
        """Take a mark of what is to be cached: nothing pins it, but a mark that is none is told."""
        value = fields.take("cache_control")
        if value is None:
            return
        if text := _fault(value):
            if is_listed(param):
                return
            raise BadRequest(f"{param}.{text}", param=f"{param}.{text.partition(' ')[0]}")
        self.add("cache_control")

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in the order of the request."""
        return tuple(self._names)


def _fault(value: Any) -> str:
    """Fault of a mark, with the field's name first; "" where there is none."""
    if not isinstance(value, dict) or value.get("type") != "ephemeral":
        return "type must be ephemeral"
    return "" if value.get("ttl") in (None, *_TTLS) else f"ttl must be one of {', '.join(_TTLS)}"
