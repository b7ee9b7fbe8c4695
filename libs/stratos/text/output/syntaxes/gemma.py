"""Gemma 4: a call with bare keys, and texts between marks of their own.

    <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:[1,2],deep:{ok:true}}<tool_call|>

Source: the chat template that llama.cpp has for Gemma 4 (models/templates/gemma4.jinja).  Texts are shown as they come.
"""

from __future__ import annotations

import json
import re

from stratos.text.output.json_text import MAX_NAME_CHARS, is_json
from stratos.text.output.notation.bare_keys import BareKeys
from stratos.text.output.reader import MalformedCall, Marks, Reading, TextReader, expect, next_char, take_if_next
from stratos.text.output.syntax import CallCount, CallForm, CallSyntax

BEGIN, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
MAX_DEPTH = 64
_QUOTES = Marks((QUOTE,))
_PREFIX = "call:"


def read(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Read one call."""
    if not (yield from take_if_next(reader, _PREFIX)):
        raise MalformedCall
    name = yield from _bare(reader, "{")
    if not re.fullmatch(r"[\w.-]+", name):
        raise MalformedCall
    yield calls.begin(name)
    yield from _object(reader, calls, 0)
    if not (yield from take_if_next(reader, END)):
        raise MalformedCall
    yield calls.end()


def _object(reader: TextReader, calls: CallCount, depth: int) -> Reading[None]:
    yield from expect(reader, "{")
    yield calls.arguments("{")
    is_first = True
    while not (yield from take_if_next(reader, "}")):
        if not is_first:
            yield from expect(reader, ",")
            yield calls.arguments(", ")
        is_first = False
        if (yield from take_if_next(reader, QUOTE)):
            yield from _text(reader, calls)
        else:
            yield calls.arguments(json.dumps((yield from _bare(reader, ":")), ensure_ascii=False))
        yield from expect(reader, ":")
        yield calls.arguments(": ")
        yield from _value(reader, calls, depth + 1)
    yield calls.arguments("}")


def _list(reader: TextReader, calls: CallCount, depth: int) -> Reading[None]:
    yield from expect(reader, "[")
    yield calls.arguments("[")
    is_first = True
    while not (yield from take_if_next(reader, "]")):
        if not is_first:
            yield from expect(reader, ",")
            yield calls.arguments(", ")
        is_first = False
        yield from _value(reader, calls, depth + 1)
    yield calls.arguments("]")


def _value(reader: TextReader, calls: CallCount, depth: int) -> Reading[None]:
    if depth > MAX_DEPTH:
        raise MalformedCall
    if (yield from take_if_next(reader, QUOTE)):
        yield from _text(reader, calls)
        return
    match (yield from next_char(reader)):
        case "{":
            yield from _object(reader, calls, depth)
        case "[":
            yield from _list(reader, calls, depth)
        case _:
            plain = yield from _bare(reader, ",}]")
            yield calls.arguments(_as_json(plain))


def _text(reader: TextReader, calls: CallCount) -> Reading[None]:
    """Show a text, whose first mark was taken, up to the second one."""
    yield calls.arguments('"')
    while (found := _QUOTES.find(reader.text)) is None:
        held = 0 if reader.is_ended else _QUOTES.num_begun(reader.text)
        if text := reader.take(len(reader.text) - held):
            yield calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        if reader.is_ended:
            raise MalformedCall
        yield None
    if text := reader.take(found.start()):
        yield calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
    reader.take(len(QUOTE))
    yield calls.arguments('"')


def _bare(reader: TextReader, ends: str) -> Reading[str]:
    """A name or a plain value up to one of these characters, which stays."""
    pattern = re.compile(f"[{re.escape(ends)}]")
    while (found := pattern.search(reader.text, 0, MAX_NAME_CHARS)) is None:
        if reader.is_ended or len(reader.text) >= MAX_NAME_CHARS:
            raise MalformedCall
        yield None
    return reader.take(found.start()).strip()


def _as_json(plain: str) -> str:
    if is_json(plain):
        return plain
    return "null" if plain == "None" else json.dumps(plain, ensure_ascii=False)


GEMMA = CallSyntax(
    name="gemma 4",
    marks=(BEGIN,),
    read=read,
    form=CallForm(before=f"{BEGIN}{_PREFIX}{{name}}", after=END, between="", arguments=BareKeys(QUOTE)),
    special=(BEGIN, END, QUOTE),
)
