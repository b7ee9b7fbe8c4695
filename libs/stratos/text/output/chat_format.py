"""The table of formats: which syntax a model's calls have, by its chat template, and whether it reasons.

A template that knows tools is given them.  For one that does not, definitions, calls and results are written into
ordinary messages in the generic syntax, which is that of Hermes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stratos.core.requests.tools import Tool, ToolCall
from stratos.text.chat_template import ChatMessage
from stratos.text.output.parser import ReasoningTags
from stratos.text.output.syntax import CallSyntax
from stratos.text.output.syntaxes import deepseek, llama_json
from stratos.text.output.syntaxes.deepseek import DEEPSEEK, DEEPSEEK_FENCED
from stratos.text.output.syntaxes.gemma import GEMMA
from stratos.text.output.syntaxes.glm import GLM
from stratos.text.output.syntaxes.harmony import HARMONY
from stratos.text.output.syntaxes.hermes import HERMES
from stratos.text.output.syntaxes.llama_json import LLAMA_4_JSON, LLAMA_JSON
from stratos.text.output.syntaxes.mistral import MISTRAL, MISTRAL_ARGS
from stratos.text.output.syntaxes.phi import PHI
from stratos.text.output.syntaxes.pythonic import PYTHONIC
from stratos.text.output.syntaxes.qwen_coder import QWEN_CODER

_ROWS: Sequence[tuple[tuple[str, ...], CallSyntax]] = (
    (("<|channel|>", "<|message|>"), HARMONY),
    (("<|tool_call>", "call:"), GEMMA),
    (("<function=", "<parameter="), QWEN_CODER),
    (("<arg_key>", "<arg_value>"), GLM),
    ((deepseek.BEGIN, "```json"), DEEPSEEK_FENCED),
    ((deepseek.BEGIN,), DEEPSEEK),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_ARGS),
    (("[TOOL_CALLS]",), MISTRAL),
    (("<|tool_call|>",), PHI),
    (("<tool_call>",), HERMES),
    ((llama_json.BEGIN, llama_json.ASKED_FOR), LLAMA_4_JSON),
    ((llama_json.BEGIN,), PYTHONIC),
    (("func_name1(",), PYTHONIC),
    ((llama_json.MARK,), LLAMA_JSON),
    ((llama_json.ASKED_FOR,), LLAMA_JSON),
)
"""Spellings that a template has all of, and the syntax that they tell; the first row counts."""
GENERIC = HERMES
_REASONING = (ReasoningTags("<think>", "</think>"), ReasoningTags("<|channel>thought", "<channel|>"))
_KNOWS_TOOLS = re.compile(r"\btools\b")
_ABOUT_TOOLS = """# Tools

You may call functions. Each line between <tools> and </tools> is the JSON definition of one of them:
<tools>
{definitions}
</tools>

To call a function, write a JSON object with its name and its arguments between tags:
<tool_call>
{{"name": <name>, "arguments": <arguments>}}
</tool_call>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """How a model's conversations have tools and reasoning."""

    syntax: CallSyntax
    is_native: bool
    """The template writes tools, calls and results itself."""
    reasoning: ReasoningTags | None = None

    @property
    def is_framed(self) -> bool:
        """Every output is read by the syntax."""
        return self.is_native and self.syntax.frame is not None

    def written(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Sequence[ChatMessage]:
        """Messages that the template can read as they are."""
        if self.is_native and self.syntax.call_id_chars:
            return [_with_ids(message, self.syntax.call_id_chars) for message in messages]
        if self.is_native or not (tools or any(m.role == "tool" or m.tool_calls for m in messages)):
            return messages
        return _with_tools(_plain(messages), tools)


def chat_format(source: str) -> ChatFormat:
    """The format of a model with this chat template."""
    rows = _ROWS if _KNOWS_TOOLS.search(source) else ()
    native = next((syntax for hints, syntax in rows if all(hint in source for hint in hints)), None)
    reasoning = next((tags for tags in _REASONING if tags.end in source), None)
    return ChatFormat(syntax=native or GENERIC, is_native=native is not None, reasoning=reasoning)


def _with_ids(message: ChatMessage, length: int) -> ChatMessage:
    """A message whose ids of calls are as long as the template wants them."""
    calls = tuple(replace(call, id=_short(call.id, length)) for call in message.tool_calls)
    return replace(message, tool_calls=calls, tool_call_id=_short(message.tool_call_id, length))


def _short(call_id: str, length: int) -> str:
    is_fit = not call_id or (len(call_id) == length and call_id.isalnum())
    return call_id if is_fit else hashlib.blake2b(call_id.encode()).hexdigest()[:length]


def _plain(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Calls as text, results as messages of the user; results, and what the user says behind them, are one message,
    as some templates want roles by turns."""
    plain, told = list[ChatMessage](), list[str]()
    for message in messages:
        is_result = message.role == "tool"
        if is_result or (told and message.role == "user" and not message.name):
            told.append(f"<tool_response>\n{message.content}\n</tool_response>" if is_result else message.content)
            continue
        if told:
            plain.append(ChatMessage("user", "\n".join(told)))
            told = []
        plain.append(ChatMessage(message.role, _with_calls(message)) if message.tool_calls else message)
    return [*plain, ChatMessage("user", "\n".join(told))] if told else plain


def _with_calls(message: ChatMessage) -> str:
    return "\n".join([*([message.content] if message.content else []), *map(_call_text, message.tool_calls)])


def _call_text(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'


def _with_tools(messages: list[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """Definitions at the end of the system message, which is made where there is none."""
    if not tools:
        return messages
    definitions = "\n".join(json.dumps(tool.definition(), ensure_ascii=False) for tool in tools)
    about = _ABOUT_TOOLS.format(definitions=definitions)
    if messages and messages[0].role == "system":
        return [replace(messages[0], content=f"{messages[0].content}\n\n{about}"), *messages[1:]]
    return [ChatMessage("system", about), *messages]
