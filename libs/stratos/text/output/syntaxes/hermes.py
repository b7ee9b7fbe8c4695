"""Hermes, Qwen 2.5 and Qwen 3: a JSON object between tags, one pair of tags for each call.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Source: chat templates of NousResearch/Hermes-2-Pro-Llama-3-8B and Qwen/Qwen2.5-7B-Instruct.
"""

from __future__ import annotations

from stratos.text.output.json_call import json_call
from stratos.text.output.reader import Reading, TextReader, take_if_next
from stratos.text.output.syntax import CallCount, CallForm, CallSyntax

BEGIN, END = "<tool_call>", "</tool_call>"


def read(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Read a call; a missing closing tag is no fault, as the object says where it ends."""
    yield from json_call(reader, calls)
    yield from take_if_next(reader, END)


HERMES = CallSyntax(
    name="hermes",
    marks=(BEGIN,),
    read=read,
    form=CallForm(before=f'{BEGIN}\n{{"name": "{{name}}", "arguments": ', after=f"}}\n{END}", between="\n"),
    special=(BEGIN, END),
)
