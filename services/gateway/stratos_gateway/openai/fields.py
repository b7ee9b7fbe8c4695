"""Fields of a JSON object, read one by one, so that what was not read is known to be unknown.

``response_format`` (OpenAI) and ``structured_outputs`` (vLLM) are read as one grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from stratos.common.errors import BadRequest
from stratos.core.ledger.usage import cost_tags
from stratos.core.requests.grammar import (
    ANY_OBJECT,
    GrammarKind,
    GrammarSpec,
    check_grammar,
    choice_grammar,
    schema_grammar,
)
from stratos.core.requests.limits import LIMITS, MAX_SESSION_CHARS, check_metadata, check_number
from stratos.core.requests.pins import (
    BREAKPOINT,
    CACHE_CONTROL,
    CACHE_OPTIONS,
    RETENTION,
    breakpoint_ttl,
    cache_control_ttl,
    cache_options,
    retention_ttl,
)
from stratos_gateway.http.body import UNKNOWN

_CONSTRAINTS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding",
    "structured_outputs",
)
"""Names that servers have for what an answer must obey: where one is not read, it is refused."""


class Keeping(NamedTuple):
    """Wishes of a request's body about the KV of its prompt."""

    ttl_s: int = 0
    """Seconds that the whole prompt is kept; 0 for not at all."""
    marks_ttl_s: int = 0
    """Least seconds of OpenAI's breakpoints without a time of their own."""
    fields: tuple[str, ...] = ()
    """Fields that ask for the whole prompt to be kept."""


PlainFields = tuple[tuple[str, type, Any], ...]
"""Names, types and values: 1, 1.0 and true are equal."""
_PLAIN, _SHORT_CHARS = frozenset({str, int, float, bool, type(None)}), 64
NO_KEEPING = Keeping()
_KEEPING = frozenset({CACHE_OPTIONS, RETENTION})


def plain_fields(content: Mapping[str, Any], beside: str = "") -> PlainFields | None:
    """Names, types and values of an object's fields but one, where all of them are short and plain."""
    found: list[tuple[str, type, Any]] = []  # ``list[...]()`` takes twenty times as long
    for name, value in content.items():
        if name == beside:
            continue
        kind = type(value)
        if kind not in _PLAIN or (kind is str and len(value) > _SHORT_CHARS):
            return None
        found.append((name, kind, value))
    return tuple(found)


class Fields:
    """A JSON object that is emptied by reading.

    Args:
        content: the object.
        path: put before names in errors, e.g. "stream_options.".
    """

    def __init__(self, content: dict[str, Any], path: str = "") -> None:
        self._left = dict(content)
        self.path = path

    def has_any(self, names: frozenset[str]) -> bool:
        """Whether one of these is left to be read: a look at all of them at once, for what few bodies have."""
        return not names.isdisjoint(self._left)

    def plain_left(self) -> PlainFields | None:
        """Names, types and values of what is left, where all of it is short and plain. Equal ones are read alike."""
        return plain_fields(self._left)

    def take(self, name: str) -> Any:
        """The value of a field, ``None`` when it is absent or null."""
        return self._left.pop(name, None)

    def take_ttl(self, *names: str) -> int | None:
        """The longest time of the marks that these fields are; ``None`` where none of them asks for anything.

        Raises:
            BadRequest: a field of these that is no mark.
        """
        ttls = (_mark_of(_TTL_READERS[name], self.take(name), f"{self.path}{name}") for name in names)
        return max((ttl for ttl in ttls if ttl is not None), default=None)

    def take_keeping(self) -> Keeping:
        """Fields of OpenAI about the whole prompt, which do not know of each other; raises like ``take_ttl``."""
        if not self.has_any(_KEEPING):
            return NO_KEEPING
        path = f"{self.path}{CACHE_OPTIONS}"
        options = _mark_of(cache_options, self.take(CACHE_OPTIONS), path)
        ttls = {RETENTION: self.take_ttl(RETENTION) or 0, CACHE_OPTIONS: options.keeps_s if options else 0}
        names = tuple(name for name, ttl_s in ttls.items() if ttl_s)
        return Keeping(max(ttls.values()), options.ttl_s if options else 0, names)

    def take_session(self) -> str:
        """Name of the session, as ``session_of`` reads it."""
        return session_of({name: self.take(name) for name in SESSION_FIELDS})

    def take_text(self, name: str) -> str:
        """A text, "" where the field is absent."""
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise BadRequest(f"{self.path}{name} must be a string", param=self.path + name)
        return value or ""

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean field."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadRequest(f"{self.path}{name} must be true or false", param=self.path + name)
        return value

    def choice(self, name: str, *words: str) -> str:
        """One of some words, the first one where the field is absent."""
        value = self.take(name)
        if value is not None and value not in words:
            raise BadRequest(f"{self.path}{name} must be one of {', '.join(words)}", param=self.path + name)
        return words[0] if value is None else str(value)

    def number(self, name: str, row: str | None = None) -> float | int | None:
        """A numeric field within the limits of its row."""
        value = self.take(name)
        return None if value is None else check_number(row or name, value, self.path + name)

    def numbers(self, names: Iterable[str]) -> dict[str, Any]:
        """Read those of some numeric fields that are given, each within the limits of its row."""
        given = [name for name in names if name in self._left] if self._left else []
        return {name: value for name in given if (value := self.number(name)) is not None}

    def take_metadata(self) -> Mapping[str, str]:
        """Texts that its client attaches to a request; raises ``BadRequest`` for more than the API takes."""
        return check_metadata(self.take("metadata"))

    def ignore_harmless(self) -> None:
        """Fields of every route that ask for nothing that changes the answer."""
        self.ignore(*HARMLESS_FIELDS)

    def ignore(self, *names: str) -> None:
        """Fields that are accepted and mean nothing here."""
        for name in names:
            self._left.pop(name, None)

    def refuse(self, name: str, *neutral: Any) -> None:
        """A field of a feature that is not supported, unless its value does not ask for the feature."""
        value = self.take(name)
        if value is not None and value not in neutral:
            param = self.path + name
            raise BadRequest(f"{param} is not supported by this server", param=param, code="unsupported_parameter")

    def end(self) -> None:
        """Refuse what was not read, or list it within ``Leniently``, unless answers would obey no constraint."""
        unknown = UNKNOWN.get()
        if unknown is not None:
            for name in _CONSTRAINTS:
                self.refuse(name)
            unknown += [self.path + name for name in self._left]
            return
        for name in self._left:
            text = f"{self.path}{name[:100]}"
            raise BadRequest(f"unknown parameter {text!r}", param=text, code="unknown_parameter")


def is_listed(param: str) -> bool:
    """List a field that the edge refuses, as another version may have taken it; false where it is to be refused."""
    unknown = UNKNOWN.get()
    if unknown is not None:
        unknown.append(param)
    return unknown is not None


def asks(value: Any) -> bool:
    """Clients write null, and empty values, for what they do not ask for."""
    return value is not None and value is not False and value not in ("", [], {})


_TTL_READERS = {CACHE_CONTROL: cache_control_ttl, BREAKPOINT: breakpoint_ttl, RETENTION: retention_ttl}


_Mark = TypeVar("_Mark")


def _mark_of(read: Callable[[Any, str], _Mark], value: Any, param: str) -> _Mark | None:
    """A mark; ``None`` where the value asks for nothing, or is none and may be listed."""
    try:
        return read(value, param) if asks(value) else None
    except BadRequest as error:
        if is_listed(error.param or param):
            return None
        raise


_OTHER_ROWS = ("max_tokens", "n", "num_logprobs", "num_prompt_logprobs", "seed", "dimensions", "truncate_prompt_tokens")
SAMPLING_ROWS = tuple(name for name in LIMITS if name not in _OTHER_ROWS)
"""Rows of the limits table that are sampling parameters of the same name on every generation route."""


def session_of(body: Mapping[str, Any]) -> str:
    """Name that a client gives its session: the narrowest text of ``SESSION_FIELDS`` that is given, else the
    ``metadata.user_id`` that messages have; "" for none."""
    if _SESSION_SOURCES.isdisjoint(body):  # as most
        return ""
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    given = [*(body.get(name) for name in SESSION_FIELDS), user]
    return next((text for text in given if isinstance(text, str) and text), "")[:MAX_SESSION_CHARS]


SESSION_FIELDS = ("prompt_cache_key", "user", "safety_identifier")
"""Texts that are equal for requests that belong together, the narrowest first."""
_SESSION_SOURCES = frozenset({*SESSION_FIELDS, "metadata"})
HARMLESS_FIELDS = (*SESSION_FIELDS, "store", RETENTION)
"""Fields of every route, besides ``metadata``, that ask for nothing that changes the answer."""
OWN_FIELDS = frozenset({"seed", "continuation_token", *SESSION_FIELDS})
"""Fields in which bodies differ that are alike else."""


def asked_beside(body: Mapping[str, Any], prompt_field: str) -> PlainFields | None:
    """All that a body asks for beside its prompt, where equal ones are read alike and many bodies may have it."""
    if UNKNOWN.get() is not None or not OWN_FIELDS.isdisjoint(body):
        return None
    return plain_fields(body, prompt_field)


_IGNORED_FIELDS = ("metadata", "store", "prediction")
"""Fields of a chat and of a completion that ask for something that is not done, though no answer changes by it."""


def ignored_fields(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the fields that mean nothing here, where they ask for something."""
    metadata = body.get("metadata")
    is_kept = not isinstance(metadata, dict) or cost_tags(metadata) == metadata
    return tuple(name for name in _IGNORED_FIELDS if body.get(name) and not (name == "metadata" and is_kept))


_SCHEMA_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


@dataclass(frozen=True, slots=True)
class WantedGrammar:
    """A grammar, and the field that asked for it."""

    spec: GrammarSpec
    param: str
    content: Mapping[str, Any] | None = None
    """Schema of the answer's text, where ``spec`` is the grammar of more than that."""
    told: str | None = None
    """Kind as receipts tell it, where that is not the kind of ``spec``; empty for one that was not asked for."""

    @property
    def kind(self) -> str:
        """Kind as receipts tell it."""
        return self.spec.kind if self.told is None else self.told

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """Schema that the answer's text obeys, where one was asked for."""
        return json.loads(self.spec.text) if self.spec.kind is GrammarKind.JSON_SCHEMA else self.content


def take_grammar(fields: Fields) -> WantedGrammar | None:
    """Read both fields of a request.

    Raises:
        BadRequest: malformed, or both at once.
    """
    wanted = [_response_format(fields.take("response_format")), _structured(fields.take("structured_outputs"))]
    grammars = [grammar for grammar in wanted if grammar is not None]
    if len(grammars) > 1:
        message = "response_format and structured_outputs cannot be used together"
        raise BadRequest(message, param="structured_outputs")
    return grammars[0] if grammars else None


def _response_format(value: Any) -> WantedGrammar | None:
    if value is None:
        return None
    fields = object_fields(value, "response_format")
    kind = fields.take("type")
    schema = fields.take("json_schema")
    fields.end()
    if kind == "text":
        return None
    if kind == "json_object":
        return WantedGrammar(ANY_OBJECT, "response_format")
    if kind == "json_schema":
        path = "response_format.json_schema"
        return named_schema(object_fields(schema, path), path)
    message = "response_format.type must be text, json_object or json_schema"
    raise BadRequest(message, param="response_format.type")


def named_schema(fields: Fields, path: str) -> WantedGrammar:
    """Read OpenAI's wrapper of a schema to its last field; with or without ``strict`` the output obeys it.

    Raises:
        BadRequest: malformed, with ``param``.
    """
    name, schema = fields.take("name"), fields.take("schema")
    fields.flag("strict")
    fields.ignore("description")
    fields.end()
    if not isinstance(name, str) or not _SCHEMA_NAME.match(name):
        message = f"{path}.name must be 1 to 64 letters, digits, underscores or dashes"
        raise BadRequest(message, param=f"{path}.name")
    return WantedGrammar(schema_grammar({} if schema is None else schema, f"{path}.schema"), f"{path}.schema")


def _structured(value: Any) -> WantedGrammar | None:
    if value is None:
        return None
    fields = object_fields(value, "structured_outputs")
    schema, regex, choice = fields.take("json"), fields.take("regex"), fields.take("choice")
    lark, any_object = fields.take("grammar"), fields.flag("json_object")
    fields.end()
    wanted: list[WantedGrammar] = []
    if schema is not None:
        param = "structured_outputs.json"
        wanted.append(WantedGrammar(schema_grammar(schema, param), param))
    if choice is not None:
        param = "structured_outputs.choice"
        wanted.append(WantedGrammar(choice_grammar(choice, param), param))
    for name, kind, text in (("regex", GrammarKind.REGEX, regex), ("grammar", GrammarKind.LARK, lark)):
        if text is not None:
            param = f"structured_outputs.{name}"
            wanted.append(WantedGrammar(check_grammar(kind, text, param), param))
    if any_object:
        wanted.append(WantedGrammar(ANY_OBJECT, "structured_outputs.json_object"))
    if len(wanted) != 1:
        message = "structured_outputs needs exactly one of json, regex, choice, grammar and json_object"
        raise BadRequest(message, param="structured_outputs")
    return wanted[0]


def object_fields(value: Any, path: str) -> Fields:
    """The fields of a value that must be an object."""
    if not isinstance(value, dict):
        raise BadRequest(f"{path} must be an object", param=path)
    return Fields(value, f"{path}.")
