"""DeepSeek, in both of its forms: V3.1 and later, and before that R1 and V3 with a fenced block.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    ... <｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n```json\\n{"a": 1}\\n```<｜tool▁call▁end｜> ...

Source: chat templates of deepseek-ai/DeepSeek-V3.1 and deepseek-ai/DeepSeek-R1.
"""

from __future__ import annotations

from stratos.text.output.json_text import json_value
from stratos.text.output.reader import MalformedCall, Reading, TextReader, take_if_next, take_until
from stratos.text.output.syntax import CallCount, CallForm, CallSyntax

OPENING, CLOSING = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```"
_SPECIAL = (OPENING, CLOSING, BEGIN, SEPARATOR, END)


def read(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Read all calls of one block."""
    is_next = mark == BEGIN or (yield from take_if_next(reader, BEGIN))
    if not is_next:
        raise MalformedCall
    while is_next:
        yield from _read_call(reader, calls)
        is_next = yield from take_if_next(reader, BEGIN)
    yield from take_if_next(reader, CLOSING)


def _read_call(reader: TextReader, calls: CallCount) -> Reading[None]:
    name = (yield from take_until(reader, SEPARATOR)).strip()
    is_fenced = name == "function"
    if is_fenced:
        name = (yield from take_until(reader, "\n")).strip()
    if not name:
        raise MalformedCall
    yield calls.begin(name)
    if is_fenced:
        yield from take_if_next(reader, f"{FENCE}json")
    yield from json_value(reader, calls.arguments)
    if is_fenced:
        yield from take_if_next(reader, FENCE)
    if not (yield from take_if_next(reader, END)):
        raise MalformedCall
    yield calls.end()


DEEPSEEK = CallSyntax(
    name="deepseek",
    marks=(OPENING, BEGIN),
    read=read,
    form=CallForm(opening=OPENING, before=f"{BEGIN}{{name}}{SEPARATOR}", after=END, between="", closing=CLOSING),
    special=_SPECIAL,
)
DEEPSEEK_FENCED = CallSyntax(
    name="deepseek with fences",
    marks=(OPENING, BEGIN),
    read=read,
    form=CallForm(
        opening=OPENING,
        before=f"{BEGIN}function{SEPARATOR}{{name}}\n{FENCE}json\n",
        after=f"\n{FENCE}{END}",
        between="\n",
        closing=CLOSING,
    ),
    special=_SPECIAL,
)
