"""Outputs with calls, in the form that each family's own chat template gives a message with ``tool_calls``.

Templates that their texts were taken from, for want of the models themselves:

- hermes: Qwen/Qwen2.5-7B-Instruct, Qwen/Qwen3-8B: name and arguments (tojson) in one object between tags
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.text.output.syntax import CallSyntax
from stratos.text.output.syntaxes.hermes import HERMES


@dataclass(frozen=True, kw_only=True)
class CallTranscript:
    """One output and what is in it."""

    name: str
    syntax: CallSyntax
    output: str
    calls: tuple[tuple[str, str], ...]
    """Name and arguments, byte for byte."""
    text: str = ""


ARGUMENTS = (
    '{"city": "Z\\u00fcrich \\"Nord\\" }{", "days": [1, {"deep": [true, null, -1.5e3]}], "\u00e9": "\U0001f600"}'
)
TRANSCRIPTS = (
    CallTranscript(
        name="hermes: one call",
        syntax=HERMES,
        output=f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
        calls=(("get_weather", ARGUMENTS),),
    ),
    CallTranscript(
        name="hermes: text, then two calls",
        syntax=HERMES,
        output='Let me see.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g-1", "arguments": {"a": "<tool_call>"}}\n</tool_call>',
        calls=(("f", "{}"), ("g-1", '{"a": "<tool_call>"}')),
        text="Let me see.",
    ),
    CallTranscript(
        name="hermes: arguments before the name, as in Hermes 2 Pro",
        syntax=HERMES,
        output='<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>\n',
        calls=(("f", '{"a": 1}'),),
    ),
    CallTranscript(
        name="hermes: arguments as a string",
        syntax=HERMES,
        output='<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call> after',
        calls=(("f", '{"a": 1}'),),
        text="after",
    ),
    CallTranscript(
        name="hermes: no arguments",
        syntax=HERMES,
        output='<tool_call>{"id": 7, "name": "now"}</tool_call>',
        calls=(("now", "{}"),),
    ),
)
