"""Mistral, in both of its forms: a list of JSON objects after one mark, or names and arguments with a mark each.

    [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]
    [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}

Source: chat templates of mistralai/Mistral-Small-3.1-24B-Instruct-2503 (list) and of later ones (``[ARGS]``).
"""

from __future__ import annotations

from stratos.text.output.json_call import json_calls
from stratos.text.output.json_text import json_value
from stratos.text.output.reader import MalformedCall, Reading, TextReader, next_char, skip_blanks, take_until
from stratos.text.output.syntax import CallCount, CallForm, CallSyntax

MARK, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def read(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Read what follows one mark."""
    yield from skip_blanks(reader)
    if (yield from next_char(reader)) in "[{":
        yield from json_calls(reader, calls)
        return
    name = (yield from take_until(reader, ARGS)).partition(CALL_ID)[0].strip()
    if not name or any(char.isspace() for char in name):
        raise MalformedCall
    yield calls.begin(name)
    yield from json_value(reader, calls.arguments)
    yield calls.end()


MISTRAL = CallSyntax(
    name="mistral",
    marks=(MARK,),
    read=read,
    form=CallForm(opening=f"{MARK} [", before='{"name": "{name}", "arguments": ', after="}", between=", ", closing="]"),
    call_id_chars=9,
    special=(MARK, ARGS, CALL_ID),
)
MISTRAL_ARGS = CallSyntax(
    name="mistral with [ARGS]",
    marks=(MARK,),
    read=read,
    form=CallForm(before=f"{MARK}{{name}}{ARGS}", after="", between=""),
    call_id_chars=9,
    special=(MARK, ARGS, CALL_ID),
)
