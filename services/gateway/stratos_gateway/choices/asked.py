"""Facts that rules look at: texts, length and needs of a body that was not checked yet.

Values of other types than a dialect's are passed over: the model that is chosen refuses them by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.store.models.choice_forms import words_of
from stratos.store.models.choice_rules import Need

CHARS_PER_TOKEN = 4
"""Of texts, roughly; a prompt of token ids has so many characters for each."""
MOST_WORDS_CHARS = 8192
"""Keywords are looked for in the beginning of the last text."""
ASSUMED_OUTPUT_TOKENS = 256
_TEXT_FIELDS = ("system", "instructions", "messages", "prompt", "input")
_LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_JSON_TYPES = ("json_schema", "json_object")
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, as far as a choice needs it."""

    words: str
    """Words of the last text of the user, as ``words_of`` has them."""
    num_chars: int
    needs: frozenset[Need]
    is_chat: bool
    """It needs a chat template."""
    max_tokens: int
    """Most tokens of its answer, or a guess."""


def asked_of(body: Mapping[str, Any]) -> Asked:
    """Facts of a body of any generation route."""
    texts = [text for field in _TEXT_FIELDS for text in _texts(body.get(field))]
    lengths = (body.get(field) for field in _LENGTH_FIELDS)
    return Asked(
        words=words_of(_last_text(body)[:MOST_WORDS_CHARS]),
        num_chars=sum(map(len, texts)) + CHARS_PER_TOKEN * _num_ids(body.get("prompt")),
        needs=frozenset(_needs(body)),
        is_chat="prompt" not in body,
        max_tokens=next((n for n in lengths if type(n) is int and n > 0), ASSUMED_OUTPUT_TOKENS),
    )


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    """Texts of a message, a part, or a list of them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth < _MAX_DEPTH and not _is_ids(value):
        for item in value:
            yield from _texts(item, depth + 1)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        for field in ("text", "content", "output"):
            yield from _texts(value.get(field), depth + 1)


def _last_text(body: Mapping[str, Any]) -> str:
    """The last message of the user, or the whole prompt."""
    for field in ("messages", "input", "prompt"):
        value = body.get(field)
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or _is_ids(value):
            continue
        own = [item for item in value if not isinstance(item, dict) or item.get("role", "user") == "user"]
        return " ".join(_texts(own[-1:] if field != "prompt" else own))
    return ""


def _num_ids(prompt: object) -> int:
    """Token ids of a prompt, or of several."""
    if not isinstance(prompt, list):
        return 0
    rows: Sequence[object] = [prompt] if _is_ids(prompt) else prompt
    return sum(len(row) for row in rows if isinstance(row, list) and _is_ids(row))


def _is_ids(value: Sequence[object]) -> bool:
    """A list of numbers is not looked through: it may have a million."""
    return bool(value) and type(value[0]) is int


def _needs(body: Mapping[str, Any]) -> Iterator[Need]:
    if body.get("tools"):
        yield Need.TOOLS
    text, config = body.get("text"), body.get("output_config")
    formats = [
        body.get("response_format"),
        body.get("output_format"),
        text.get("format") if isinstance(text, dict) else None,
        config.get("format") if isinstance(config, dict) else None,
    ]
    if body.get("structured_outputs") or any(isinstance(f, dict) and f.get("type") in _JSON_TYPES for f in formats):
        yield Need.SCHEMA
