"""Llama 4 and others: an answer that is a list of Python calls with keyword arguments.

    [get_weather(city="Paris", days=[1, 2]), now()]

Source: chat template of meta-llama/Llama-4-Scout-17B-16E-Instruct.  Values are Python's literals; each is shown as JSON
once it is complete.
"""

from __future__ import annotations

import ast
import json
import re
import warnings

from stratos.text.output.json_text import is_json, whole_characters
from stratos.text.output.notation.keywords import keyword_arguments
from stratos.text.output.reader import MalformedCall, Reading, TextReader, expect, next_char, skip_blanks
from stratos.text.output.syntax import CallCount, CallForm, CallSyntax

MARK = "<|python_start|>"
_NAME = re.compile(r"[\w.-]+")
_IS_NAME = re.compile(r"\d*[A-Za-z_][\w.-]*")
_UNLIKE = r"[ \t\r\n]*\[[ \t\r\n]*[^ \t\r\n\[\](){}\"',:=]+\("
MAX_NAME_CHARS = 256


def read(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Read the list."""
    yield from expect(reader, "[")
    while True:
        yield from _read_call(reader, calls)
        yield from skip_blanks(reader)
        if (yield from next_char(reader)) != ",":
            break
        reader.take(1)
    yield from expect(reader, "]")


def _read_call(reader: TextReader, calls: CallCount) -> Reading[None]:
    yield calls.begin((yield from _name(reader, "(")))
    opening = "{"
    yield from skip_blanks(reader)
    while (yield from next_char(reader)) != ")":
        name = yield from _name(reader, "=")
        yield calls.arguments(f"{opening}{json.dumps(name)}: ")
        opening = ", "
        yield calls.arguments(as_json((yield from _literal(reader))))
        if reader.text[0] == ",":
            reader.take(1)
            yield from skip_blanks(reader)
    reader.take(1)
    yield calls.arguments("{}" if opening == "{" else "}")
    yield calls.end()


def _name(reader: TextReader, end: str) -> Reading[str]:
    """A name and the character after it, which is taken."""
    yield from skip_blanks(reader)
    while (found := _NAME.match(reader.text)) is None or found.end() == len(reader.text):
        if reader.is_ended or (reader.text and found is None) or len(reader.text) > MAX_NAME_CHARS:
            raise MalformedCall
        yield None
    is_name = found.end() <= MAX_NAME_CHARS and _IS_NAME.fullmatch(found.group()) is not None
    if reader.text[found.end()] != end or not is_name:
        raise MalformedCall
    reader.take(found.end() + 1)
    return found.group()


def _literal(reader: TextReader) -> Reading[str]:
    """Text of a literal up to the comma or the bracket after it, which stays."""
    depth, quote, place = 0, "", 0
    while True:
        while place < len(reader.text):
            char = reader.text[place]
            if quote:
                if char == "\\":
                    place += 1
                elif char == quote:
                    quote = ""
            elif char in "'\"":
                quote = char
            elif depth == 0 and char in ",)":
                return reader.take(place)
            elif char in "[{(":
                depth += 1
            elif char in "]})":
                depth -= 1
            place += 1
        if reader.is_ended:
            raise MalformedCall
        yield None


def as_json(text: str) -> str:
    """A Python literal as JSON; raises ``MalformedCall`` for anything else."""
    if is_json(text):  # true, false, null, and most others
        return text.strip()
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not have
            value = ast.literal_eval(text.strip())
        return whole_characters(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise MalformedCall from None


PYTHONIC = CallSyntax(
    name="pythonic",
    marks=(MARK,),
    read=read,
    form=CallForm(
        opening="[",
        before="{name}(",
        after=")",
        between=", ",
        closing="]",
        arguments=keyword_arguments,
        unlike=_UNLIKE,
    ),
    starts_with="[",
    special=(MARK,),
)
