"""Fields of chats and completions that are no sampling: what a stream tells, and how long a prompt may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import BadRequest
from stratos_gateway.openai.fields import Fields, object_fields

_SIDES = ("left", "right")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Fields that say what a stream tells besides its output."""

    include_usage: bool = False
    """A last event has the usage."""
    continuous_usage: bool = False
    """So has every other one, as in vLLM."""


def take_stream_options(value: Any, stream: bool) -> StreamOptions:
    """Check the field of a request.

    Raises:
        BadRequest: malformed, or of a request that is not streamed.
    """
    if value is None:
        return StreamOptions()
    if not stream:
        raise BadRequest("stream_options needs stream: true", param="stream_options")
    fields = object_fields(value, "stream_options")
    options = StreamOptions(fields.flag("include_usage"), fields.flag("continuous_usage_stats"))
    fields.ignore("include_obfuscation")
    fields.end()
    if options.continuous_usage and not options.include_usage:
        text = "continuous_usage_stats needs include_usage: true"
        raise BadRequest(text, param="stream_options.continuous_usage_stats")
    return options


@dataclass(frozen=True, slots=True)
class Truncation:
    """Length that prompts are cut to."""

    num_tokens: int | None
    """``None`` keeps as much as the model takes."""
    keeps_end: bool = True
    """The beginning is lost; else the end."""

    def cut(self, ids: Sequence[int], most: int) -> tuple[int, ...]:
        """The ids that are left of a prompt.

        Args:
            ids: of the whole prompt.
            most: tokens that a prompt may have.

        Raises:
            BadRequest: more are asked for.
        """
        if self.num_tokens is not None and self.num_tokens > most:
            text = f"truncate_prompt_tokens must be at most {most} here"
            raise BadRequest(text, param="truncate_prompt_tokens")
        length = most if self.num_tokens is None else self.num_tokens
        return tuple(ids[-length:] if self.keeps_end else ids[:length])


def take_truncation(fields: Fields) -> Truncation | None:
    """Read both fields; ``None`` refuses prompts that are too long.

    Raises:
        BadRequest: out of range, or a side without a length.
    """
    num_tokens, side = fields.number("truncate_prompt_tokens"), fields.take("truncation_side")
    if side is not None and side not in _SIDES:
        raise BadRequest(f"truncation_side must be one of {', '.join(_SIDES)}", param="truncation_side")
    if num_tokens is None:
        if side is not None:
            raise BadRequest("truncation_side needs truncate_prompt_tokens", param="truncation_side")
        return None
    if num_tokens == 0:
        raise BadRequest("truncate_prompt_tokens must be -1, or 1 and more", param="truncate_prompt_tokens")
    return Truncation(None if num_tokens < 0 else int(num_tokens), keeps_end=side != "right")
