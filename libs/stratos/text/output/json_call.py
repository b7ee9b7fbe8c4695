"""A call as one JSON object with a name and arguments: ``{"name": "f", "arguments": {"a": 1}}``."""

from __future__ import annotations

from stratos.text.output.json_text import decoded_string, json_string, json_value
from stratos.text.output.reader import MalformedCall, Reading, TextReader, expect, next_char, skip_blanks
from stratos.text.output.syntax import CallCount

ARGUMENTS = frozenset({"arguments", "parameters"})


def json_call(reader: TextReader, calls: CallCount) -> Reading[None]:
    """Read one object; its name is shown once it is known, its arguments as they come after it.

    Other fields (``id``, ``type``) mean nothing here.

    Raises:
        MalformedCall: it is no such object, or breaks off.
    """
    early: str | None = None  # arguments that stood before the name
    has_arguments = False
    yield from expect(reader, "{")
    while True:
        key = yield from json_string(reader)
        yield from expect(reader, ":")
        if key == "name" and not calls.is_open:
            yield calls.begin((yield from json_string(reader)))
            if early is not None:
                yield calls.arguments(early)
        elif key in ARGUMENTS and not has_arguments:
            has_arguments = True
            early = yield from _arguments(reader, calls)
        else:
            yield from json_value(reader)
        yield from skip_blanks(reader)
        if (yield from next_char(reader)) != ",":
            break
        reader.take(1)
    yield from expect(reader, "}")
    if not calls.is_open:
        raise MalformedCall
    if not has_arguments:
        yield calls.arguments("{}")
    yield calls.end()


def _arguments(reader: TextReader, calls: CallCount) -> Reading[str]:
    """The value of a call's arguments, shown if the call has begun; some models write the object as a string."""
    yield from skip_blanks(reader)
    is_string = (yield from next_char(reader)) == '"'
    text = yield from json_value(reader, calls.arguments if calls.is_open and not is_string else None)
    if is_string:
        text = decoded_string(text)
        if calls.is_open:
            yield calls.arguments(text)
    return text
