"""Server-sent events of a completion stream: which of them carry output, and what the last ones tell."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_PREFIX = b"data:"
_DONE = b"[DONE]"


@dataclass(slots=True)
class StreamReader:
    """Collects one stream; give it each piece as it arrives."""

    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    error: str = ""
    is_ended: bool = False
    """The stream ended as it should."""
    _rest: bytes = b""

    def feed(self, data: bytes) -> int:
        """Read a piece; returns the number of events in it that carry output."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return sum(self._read(line) for line in lines if line.startswith(_PREFIX))

    def _read(self, line: bytes) -> bool:
        content = line[len(_PREFIX) :].strip()
        if content == _DONE:
            self.is_ended = True
            return False
        try:
            event: Any = json.loads(content)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self.error = "an event is not a JSON object"
            return False
        if "error" in event:
            self.error = _message(event["error"])
            return False
        if usage := event.get("usage"):
            self.num_prompt_tokens, self.num_output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        return any(_has_output(choice) for choice in event.get("choices") or ())


def _has_output(choice: dict[str, Any]) -> bool:
    """A chat begins with an event that holds the role alone, and may end with one that holds the finish reason alone.

    A token can have no text of its own yet, such as a part of a character: it counts where it is an event.
    """
    if "delta" not in choice:
        return bool(choice.get("text")) or choice.get("finish_reason") is None
    delta = choice["delta"]
    return any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))


def _message(error: Any) -> str:
    return str(error.get("code") or error.get("message") or error) if isinstance(error, dict) else str(error)
