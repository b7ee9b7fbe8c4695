"""Events that differ in their text alone: cut once out of an event that the renderer made, so both have one form."""

from __future__ import annotations

import orjson

MARK = "\0"
"""Text of the event that is cut."""
_MARK_JSON = orjson.dumps(MARK)


class TextTemplate:
    """Bytes around the text of one choice's events.

    Args:
        marked: an event whose text is ``MARK``, wherever it stands.
    """

    def __init__(self, marked: bytes) -> None:
        self._parts = marked.split(_MARK_JSON)

    def event(self, text: str) -> bytes:
        """The event with this text."""
        return orjson.dumps(text).join(self._parts)

    @property
    def around(self) -> tuple[bytes, bytes] | None:
        """Bytes before and behind the text; ``None`` where it stands at several places."""
        return (self._parts[0], self._parts[1]) if len(self._parts) == 2 else None
