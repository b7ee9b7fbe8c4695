"""Phi 4 mini: a JSON object, or a list of them, between tags.

    <|tool_call|>{"name": "f", "arguments": {"a": 1}}<|/tool_call|>

Source: the chat template that llama.cpp has for microsoft/Phi-4-mini-instruct; the list is from the model's card.
"""

from __future__ import annotations

from stratos.text.output.json_call import json_calls
from stratos.text.output.reader import Reading, TextReader, take_if_next
from stratos.text.output.syntax import CallCount, CallForm, CallSyntax

BEGIN, END = "<|tool_call|>", "<|/tool_call|>"


def read(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Read what is between two tags."""
    yield from json_calls(reader, calls)
    yield from take_if_next(reader, END)


PHI = CallSyntax(
    name="phi",
    marks=(BEGIN,),
    read=read,
    form=CallForm(before=f'{BEGIN}{{"name": "{{name}}", "arguments": ', after=f"}}{END}", between=""),
    special=(BEGIN, END),
)
