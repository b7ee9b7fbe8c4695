"""A call as one JSON object with a name and arguments: ``{"name": "f", "arguments": {"a": 1}}``."""

from __future__ import annotations

from collections.abc import Collection

from stratos.text.output.json_text import decoded_string, json_string, json_value
from stratos.text.output.reader import MalformedCall, Reading, TextReader, expect, next_char, skip_blanks
from stratos.text.output.syntax import CallCount

ARGUMENTS = frozenset({"arguments", "parameters"})


def json_call(reader: TextReader, calls: CallCount, first_keys: Collection[str] = ()) -> Reading[None]:
    """Read one object; its name is shown once it is known, its arguments as they come after it.

    Other fields (``id``, ``type``) mean nothing here.

    Args:
        reader: of the text.
        calls: so far.
        first_keys: the object begins with one of these, or it is no call; any key where there are none.

    Raises:
        MalformedCall: it is no such object, or breaks off.
    """
    early: str | None = None  # arguments that stood before the name
    has_arguments = False
    yield from expect(reader, "{")
    while True:
        key = yield from json_string(reader)
        if first_keys and key not in first_keys:
            raise MalformedCall
        first_keys = ()
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


def json_calls(reader: TextReader, calls: CallCount) -> Reading[None]:
    """Read one object, or a list of them; raises ``MalformedCall``."""
    yield from skip_blanks(reader)
    if (yield from next_char(reader)) != "[":
        yield from json_call(reader, calls)
        return
    reader.take(1)
    while True:
        yield from json_call(reader, calls)
        yield from skip_blanks(reader)
        if (yield from next_char(reader)) != ",":
            break
        reader.take(1)
    yield from expect(reader, "]")
