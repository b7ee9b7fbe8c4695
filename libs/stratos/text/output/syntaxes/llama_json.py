"""Llama 3.1 to 3.3: an answer that is a JSON object, or several with semicolons between them.

    {"name": "get_weather", "parameters": {"city": "Paris"}}
    <|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}

Source: chat template of meta-llama/Llama-3.1-8B-Instruct.  An answer that begins with another object is text.
"""

from __future__ import annotations

from stratos.text.output.json_call import json_call
from stratos.text.output.reader import Reading, TextReader, take_if_next
from stratos.text.output.syntax import CallCount, CallForm, CallSyntax

MARK = "<|python_tag|>"
_FIRST_KEYS = frozenset({"name", "type", "parameters"})
_UNLIKE = r'[ \t\r\n]*\{[ \t\r\n]*"(name"|type"|parameters"|[^"]*\\)'
"""An object with one of these keys first, or with one that is spelled with escapes."""


def read(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Read the objects."""
    yield from json_call(reader, calls, _FIRST_KEYS)
    while (yield from take_if_next(reader, ";")):
        yield from json_call(reader, calls, _FIRST_KEYS)


LLAMA_JSON = CallSyntax(
    name="llama 3 json",
    marks=(MARK,),
    read=read,
    form=CallForm(before='{"name": "{name}", "parameters": ', after="}", between="; ", unlike=_UNLIKE),
    starts_with="{",
    special=(MARK,),
)
