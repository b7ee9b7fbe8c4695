"""Marks in conversations -> breakpoints in token ids, and what a tenant's plan lets a worker keep of them.

A mark stands behind a character of a message.  Where that is in the rendered prompt is found by rendering it once more
with a text at each mark that cannot be guessed.  What is before the last one is encoded, and a breakpoint is at the
last token before its mark up to which the prompt has the same tokens.  So it ends a prefix of the prompt, whatever a
template does.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from stratos.common.errors import BadRequest
from stratos.core.requests.pins import CACHE_CONTROL, NO_PINS, TTL_24H_S, Breakpoint, CacheMark, PinTerms
from stratos.core.requests.tools import Tool
from stratos.core.tenancy.plan import CachePolicy, Plan
from stratos.text.chat_template import ChatMessage
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.requests import Conversation, GenerationBody
from stratos_gateway.preparation.output_shape import told


async def with_breakpoints(
    model: ServedModel, body: GenerationBody, prompts: Sequence[tuple[int, ...]], plan: Plan
) -> GenerationBody:
    """The body with its breakpoints; fields that ask for what the plan or the prompt does not allow are ignored."""
    if not plan.pinned_kv_ratio or plan.cache_policy is CachePolicy.OFF:
        return _ignoring(body, body.keep_fields)
    found, lost = list[tuple[Breakpoint, ...]](), list[str]()
    for prompt, ids in zip(body.prompts, prompts, strict=True):
        marks = await _marks(model, prompt, ids) if isinstance(prompt, Conversation) else []
        lost += [name for mark, num_tokens in marks if not num_tokens for name in mark.fields]
        lost += [CACHE_CONTROL] if isinstance(prompt, Conversation) and prompt.tools.loses_marks else []
        ends = [*((num, mark.ttl_s) for mark, num in marks), (len(ids), body.keeps_s)]
        found.append(_breakpoints(ends, plan.max_pin_s or TTL_24H_S))
    return _ignoring(replace(body, breakpoints=tuple(found)), lost)


def _ignoring(body: GenerationBody, names: Iterable[str]) -> GenerationBody:
    return replace(body, ignored=tuple(dict.fromkeys([*body.ignored, *names])))


def _breakpoints(ends: Iterable[tuple[int, int]], most_s: int) -> tuple[Breakpoint, ...]:
    """Breakpoints of tokens and seconds, in the order of the prompt; of several at one token the longest."""
    ttls = dict[int, int]()
    for num_tokens, ttl_s in ends:
        ttls[num_tokens] = min(most_s, max(ttl_s, ttls.get(num_tokens, 0)))
    return tuple(Breakpoint(num, ttls[num]) for num in sorted(ttls) if num and ttls[num])


def pin_terms(plan: Plan, breakpoints: Sequence[Breakpoint]) -> PinTerms:
    """Terms of one prompt."""
    if not breakpoints:
        return NO_PINS
    return PinTerms(
        breakpoints=tuple(breakpoints), device_ratio=plan.pinned_kv_ratio, host_ratio=plan.pinned_host_ratio
    )


async def _marks(model: ServedModel, prompt: Conversation, ids: tuple[int, ...]) -> list[tuple[CacheMark, int]]:
    """Marks of a conversation, and how many tokens of its prompt are before each."""
    found = list[tuple[CacheMark, int]]()
    for signed, marks in _signed(prompt):
        try:
            begin, counts = await told(model, signed, partial(model.encode_before, signs=tuple(marks)))
        except BadRequest:  # the marks alone make the template refuse it, or too long
            begin, counts = [], [0] * len(marks)
        num_equal = _num_equal(ids, begin)
        found += [(mark, min(count, num_equal)) for mark, count in zip(marks.values(), counts, strict=True)]
    return found


def _signed(prompt: Conversation) -> Iterator[tuple[Conversation, Mapping[str, CacheMark]]]:
    """The conversation with a text at each mark: once for all messages, and once for each tool.

    Templates write a tool in many ways, so the text is the name of another tool in the place behind it: what is before
    that text has all of the tool, and what is written between two tools.
    """
    nonce, tools = secrets.token_hex(8), prompt.tools.tools
    for number, tool in enumerate(tools):
        if tool.keeps_s:
            text = f"{nonce}-tool-"
            told_of = replace(prompt.tools, tools=(*tools[: number + 1], Tool(text), *tools[number + 2 :]))
            yield replace(prompt, tools=told_of), {text: CacheMark(0, tool.keeps_s)}
    marks = dict[str, CacheMark]()
    messages = tuple(_with_texts(message, nonce, marks) for message in prompt.messages)
    if marks:
        yield replace(prompt, messages=messages), marks


def _with_texts(message: ChatMessage, nonce: str, marks: dict[str, CacheMark]) -> ChatMessage:
    """A message with a text at each of its marks, which goes into ``marks``.

    The text is before the blanks at the end, which templates cut off.
    """
    parts, begin = list[str](), 0
    for mark in message.marks:
        end = len(message.content[: mark.end].rstrip())
        text = f"{nonce}-{len(marks)}-"
        marks[text] = mark
        parts += [message.content[begin:end], text]
        begin = max(begin, end)
    return replace(message, content="".join(parts) + message.content[begin:]) if parts else message


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first ids are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
