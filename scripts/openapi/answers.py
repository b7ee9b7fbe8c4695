"""JSON schemas of answers, from what is written: whole answers and events of the generation routes, views of others.

A schema has the fields that every answer has, and the types that were written; a field that was always null has none.
It closes nothing: an answer may have further fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from scripts.openapi.samples import USAGE, Sample, samples
from stratos.common.errors import Internal
from stratos_gateway.preparation.dialects import DIALECTS, Dialect
from stratos_gateway.responses.rendering import ResponseRenderer

_FREE = ("parameters", "schema", "input", "metadata")
"""Values that are the client's or the model's own."""
_MAPS = ("prompt_logprobs", "top_logprobs")
"""Fields whose objects have tokens for names, unless they name the token in a field."""


def answer_schemas() -> Mapping[str, dict[str, Any]]:
    """The schema of each generation route's whole answer, by its path."""
    return {
        dialect.path: schema_of(answer for one in samples(dialect) for answer in _answers(one)) for dialect in DIALECTS
    }


def event_schemas() -> Mapping[str, dict[str, Any]]:
    """The schema of the data of each generation route's events, by its path."""
    return {dialect.path: _of_kinds(list(_events(dialect))) for dialect in DIALECTS}


def schema_of(values: Iterable[Any], name: str = "") -> dict[str, Any]:
    """The narrowest schema of this kind that all values obey; empty where they are all null, or there are none.

    Args:
        values: that were written.
        name: of the field that has them.
    """
    found = list(values)
    objects = [value for value in found if isinstance(value, dict)]
    lists = [value for value in found if isinstance(value, list)]
    kinds = sorted({_kind(value) for value in found})
    if kinds in ([], ["null"]):
        return {}
    if "number" in kinds and "integer" in kinds:
        kinds.remove("integer")
    schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    if name in _FREE:
        return schema
    if name in _MAPS and not any("token" in one for one in objects):
        schema["additionalProperties"] = schema_of(value for one in objects for value in one.values())
    elif objects:
        names = sorted(set().union(*objects))
        schema["properties"] = {key: schema_of((one[key] for one in objects if key in one), key) for key in names}
        schema["required"] = [key for key in names if all(key in one for one in objects)]
    if lists:
        schema["items"] = schema_of((item for one in lists for item in one), name)
    return schema


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _answers(sample: Sample) -> Iterator[dict[str, Any]]:
    yield sample.renderer().body(sample.chunks(), USAGE)
    standing = sample.renderer()
    if isinstance(standing, ResponseRenderer):  # a background response, as it is asked for before its end
        yield standing.standing("queued", [])
        failed = sample.renderer()
        assert isinstance(failed, ResponseRenderer)
        yield failed.standing("failed", sample.chunks(), Internal("broken"))


def _events(dialect: Dialect) -> Iterator[dict[str, Any]]:
    """Events of whole streams, of one that is silent, and of one that fails."""
    for sample in samples(dialect):
        renderer = sample.renderer()
        yield from _read(b"".join(renderer.stream_part([chunk]) for chunk in sample.chunks(is_stream=True)))
        yield from _read(renderer.stream_end(USAGE))
    renderer = next(samples(dialect)).renderer()
    yield from _read(renderer.keep_alive)
    yield from _read(renderer.stream_failure(Internal("broken")))


def _read(stream: bytes) -> Iterator[dict[str, Any]]:
    lines = (line.removeprefix(b"data: ") for line in stream.split(b"\n") if line.startswith(b"data: "))
    yield from (orjson.loads(line) for line in lines if line != b"[DONE]")


def _of_kinds(events: list[dict[str, Any]]) -> dict[str, Any]:
    """One schema for each type of event; where they have none, errors are told apart alone."""
    groups = dict[str, list[dict[str, Any]]]()
    for event in events:
        groups.setdefault(event.get("type") or ("error" if "error" in event else ""), []).append(event)
    found = []
    for kind, own in sorted(groups.items()):
        schema = schema_of(own)
        if "type" in schema["properties"]:
            schema["properties"]["type"] = {"const": kind}
        found.append(schema)
    return {"anyOf": found}
