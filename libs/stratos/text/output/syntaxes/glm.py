"""GLM 4.5 and 4.6: a name, then keys and values in tags, values as plain text or as JSON.

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    </tool_call>

Source: chat template of zai-org/GLM-4.5.
"""

from __future__ import annotations

import re

from stratos.text.output.notation.tagged import TaggedNotation
from stratos.text.output.reader import MalformedCall, Reading, TextReader, skip_blanks, take_if_next, take_until
from stratos.text.output.syntax import CallCount, CallForm, CallSyntax
from stratos.text.output.tagged_values import TaggedArguments

BEGIN, END = "<tool_call>", "</tool_call>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_NAME_END = re.compile(r"[\n<]")


def read(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Read one call."""
    yield from skip_blanks(reader)
    while (found := _NAME_END.search(reader.text)) is None:
        if reader.is_ended:
            raise MalformedCall
        yield None
    name = reader.take(found.start()).strip()
    if not re.fullmatch(r"[\w.-]+", name):
        raise MalformedCall
    yield calls.begin(name)
    arguments = TaggedArguments(calls, name, line_breaks=False)
    while (yield from take_if_next(reader, KEY)):
        key = (yield from take_until(reader, KEY_END)).strip()
        if not (yield from take_if_next(reader, VALUE)):
            raise MalformedCall
        yield from arguments.read(reader, key, VALUE_END)
    if not (yield from take_if_next(reader, END)):
        raise MalformedCall
    yield calls.arguments(arguments.close())
    yield calls.end()


GLM = CallSyntax(
    name="glm",
    marks=(BEGIN,),
    read=read,
    form=CallForm(
        before=f"{BEGIN}{{name}}\n",
        after=END,
        between="\n",
        arguments=TaggedNotation(before_key=KEY, after_key=f"{KEY_END}\n{VALUE}", end=VALUE_END, after="\n"),
    ),
    special=(BEGIN, END, KEY, KEY_END, VALUE, VALUE_END),
)
