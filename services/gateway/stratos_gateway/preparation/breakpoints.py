"""Marks in conversations -> breakpoints in token ids, and what a tenant's plan lets a worker keep of them.

A mark stands behind a character of a message.  Where that is in the rendered prompt is found by rendering it once more
with a text at each mark that cannot be guessed; what is before it is encoded, and a breakpoint is at the last token
that the prompt begins with likewise.  So a breakpoint is always a prefix of the prompt, whatever a template does.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from stratos.common.errors import BadRequest
from stratos.core.requests.pins import NO_PINS, RETENTION, Breakpoint, PinTerms
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
    if not (body.keeps_s or body.mark_fields):
        return body
    asked = (*body.mark_fields, *((RETENTION,) if body.keeps_s else ()))
    if not plan.pinned_kv_ratio or plan.cache_policy is CachePolicy.OFF:
        return replace(body, ignored=(*body.ignored, *asked))
    found = [await _breakpoints(model, body, prompt, ids) for prompt, ids in zip(body.prompts, prompts, strict=True)]
    lost = body.mark_fields if not any(mark.num_tokens for marks, _ in found for mark in marks) else ()
    whole = [
        (*marks, *((Breakpoint(num_tokens, body.keeps_s),) if body.keeps_s else ())) for marks, num_tokens in found
    ]
    return replace(body, breakpoints=tuple(whole), ignored=(*body.ignored, *lost))


def pin_terms(plan: Plan, breakpoints: Sequence[Breakpoint]) -> PinTerms:
    """Terms of one prompt."""
    if not breakpoints:
        return NO_PINS
    return PinTerms(
        breakpoints=tuple(breakpoints), device_ratio=plan.pinned_kv_ratio, host_ratio=plan.pinned_host_ratio
    )


async def _breakpoints(
    model: ServedModel, body: GenerationBody, prompt: object, ids: tuple[int, ...]
) -> tuple[list[Breakpoint], int]:
    """Breakpoints of one prompt, and its length."""
    if not isinstance(prompt, Conversation) or not body.mark_fields:
        return [], len(ids)
    messages, tools, ttls = _marked(prompt)
    try:
        signed = replace(prompt, messages=messages, tools=replace(prompt.tools, tools=tools))
        rendered = await told(model, signed, partial(model.encode_before, signs=tuple(ttls)))
    except BadRequest:  # the marks alone make the template refuse it, or too long
        return [], len(ids)
    counts = [_num_equal(ids, part) for part in rendered]
    marks = [Breakpoint(count, ttl_s) for count, ttl_s in zip(counts, ttls.values(), strict=True) if count]
    return sorted(marks, key=lambda mark: mark.num_tokens), len(ids)


def _marked(prompt: Conversation) -> tuple[tuple[ChatMessage, ...], tuple[Tool, ...], dict[str, int]]:
    """Messages and tools with a text at each mark, and the seconds of each."""
    nonce, ttls = secrets.token_hex(8), dict[str, int]()

    def sign(ttl_s: int) -> str:
        text = f"\ue000{nonce}.{len(ttls)}\ue001"
        ttls[text] = ttl_s
        return text

    tools = [
        replace(tool, description=tool.description + sign(tool.keeps_s)) if tool.keeps_s else tool
        for tool in prompt.tools.tools
    ]
    messages = [_signed(message, sign) for message in prompt.messages]
    return tuple(messages), tuple(tools), ttls


def _signed(message: ChatMessage, sign: Callable[[int], str]) -> ChatMessage:
    if not message.marks:
        return message
    parts, begin = list[str](), 0
    for mark in message.marks:
        parts += [message.content[begin : mark.end], sign(mark.ttl_s)]
        begin = mark.end
    return replace(message, content="".join(parts) + message.content[begin:])


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first ids are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
