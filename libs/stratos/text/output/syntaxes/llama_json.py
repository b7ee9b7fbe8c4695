"""Llama 3.1 to 3.3: an answer that is a JSON object, or several with semicolons between them; Llama 4: without.

    {"name": "get_weather", "parameters": {"city": "Paris"}}
    <|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}
    <|python_start|>I look.<|python_end|>{"name": "f", "parameters": {}}{"name": "g", "parameters": {}}

Sources: chat templates of meta-llama/Llama-3.1-8B-Instruct and of Llama-4-Scout-17B-16E-Instruct, which ask for
the same objects.  An answer that begins with another object is text.
"""

from __future__ import annotations

from stratos.text.output.events import TextDelta
from stratos.text.output.json_call import json_call
from stratos.text.output.reader import Marks, Reading, TextReader, skip_blanks, take_if_next, text_until
from stratos.text.output.syntax import CallCount, CallForm, CallSyntax

MARK, BEGIN, END = "<|python_tag|>", "<|python_start|>", "<|python_end|>"
ASKED_FOR = '{"name": function name, "parameters": dictionary of argument name and its value}'
"""What the templates tell the model to write."""
_END = Marks((END,))
_FIRST_KEYS = frozenset({"name", "type", "parameters"})
_UNLIKE = r'[ \t\r\n]*\{[ \t\r\n]*"(name"|type"|parameters"|[^"]*\\)'
"""An object with one of these keys first, or with one that is spelled with escapes."""


def read(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Read the objects."""
    yield from json_call(reader, calls, _FIRST_KEYS)
    while (yield from take_if_next(reader, ";")):
        yield from json_call(reader, calls, _FIRST_KEYS)


def read_llama_4(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Read what follows the mark, or the objects of an answer that has none: text up to the other mark, then calls."""
    if mark and not (yield from _is_object_next(reader)):
        yield from text_until(reader, _END, TextDelta)
        if not (yield from _is_object_next(reader)):
            return
    yield from json_call(reader, calls, _FIRST_KEYS)
    while (yield from take_if_next(reader, ";")) or (yield from _is_object_next(reader)):
        yield from json_call(reader, calls, _FIRST_KEYS)


def _is_object_next(reader: TextReader) -> Reading[bool]:
    """An object comes next, behind blanks and the mark that ends what is no call."""
    yield from take_if_next(reader, END)
    yield from skip_blanks(reader)
    return reader.text.startswith("{")


LLAMA_JSON = CallSyntax(
    name="llama 3 json",
    marks=(MARK,),
    read=read,
    form=CallForm(before='{"name": "{name}", "parameters": ', after="}", between="; ", unlike=_UNLIKE),
    starts_with="{",
    special=(MARK,),
)
LLAMA_4_JSON = CallSyntax(
    name="llama 4 json",
    marks=(BEGIN,),
    read=read_llama_4,
    form=CallForm(before='{"name": "{name}", "parameters": ', after="}", between="", unlike=_UNLIKE),
    starts_with="{",
    special=(BEGIN, END),
)
