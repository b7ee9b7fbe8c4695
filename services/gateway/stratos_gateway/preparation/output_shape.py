"""Conversations with tools: how the model is told of them, and what is looked for in its output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from stratos.common.errors import BadRequest, ContextLengthExceeded
from stratos.core.requests.grammar import GrammarKind
from stratos.core.requests.tools import ToolMode
from stratos.text.chat_template import ChatMessage, TemplateUse
from stratos.text.output.parser import OutputShape
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.requests import Conversation, GenerationBody

T = TypeVar("T")
_SWITCHES = ("enable_thinking", "thinking")
"""Values of the chat templates that can turn reasoning on and off; DeepSeek V3.1 has the other name."""
_EFFORT = "reasoning_effort"
"""Value of those that can have more or less of it."""
_NUM_LAST_IDS = 16
"""Ids of a prompt's end that are looked at for a tag."""


async def encode_conversation(model: ServedModel, conversation: Conversation) -> tuple[int, ...]:
    """Ids of a conversation; with ``tool_choice: none`` the model is told of no tools.

    Raises:
        BadRequest: empty, too long, or refused by the template.
    """
    return await told(model, conversation, model.encode_chat)


async def told(model: ServedModel, conversation: Conversation, encode: Callable[..., Awaitable[T]]) -> T:
    """Result of ``encode`` for a conversation, as the model's template takes it.

    Args:
        model: with the template.
        conversation: to tell.
        encode: takes messages, tools and the use of the template.

    Raises:
        BadRequest: of ``encode``.
    """
    use, tools = _template_use(model, conversation), conversation.tools.tools if conversation.tools.may_call else ()
    refusal: BadRequest | None = None
    for messages in _forms(conversation.messages):
        try:
            return await encode(messages, tools, use)
        except ContextLengthExceeded:
            raise
        except BadRequest as error:
            refusal = error
    assert refusal is not None, "there is one form at least"
    raise refusal


def _forms(messages: tuple[ChatMessage, ...]) -> Iterator[tuple[ChatMessage, ...]]:
    """The messages as they are, and then for templates that refuse them so."""
    yield messages
    if (gathered := _with_system_first(messages)) != messages:
        yield gathered
    if (joined := _with_turns(gathered)) != gathered:
        yield joined


def _with_turns(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """Messages for a template that has the assistant answer to results of tools (Mistral): what the user says behind
    them stands in the last one."""
    found, texts = list[ChatMessage](), list[list[str]]()
    for message in messages:
        if found and found[-1].role == "tool" and message.role == "user" and not message.name:
            texts[-1].append(message.content)
        else:
            found.append(message)
            texts.append([message.content])
    return tuple(
        replace(message, content="\n\n".join(parts)) if len(parts) > 1 else message
        for message, parts in zip(found, texts, strict=True)
    )


def _template_use(model: ServedModel, conversation: Conversation) -> TemplateUse:
    """How the template is used, so that the model reasons or does not, as the conversation wants it."""
    use, thinks, template = conversation.use, conversation.thinks, model.template
    if template is None:
        return use
    for name in use.values:
        if not template.reads(name):
            param = f"chat_template_kwargs.{name[:100]}"
            text = f"the model's chat template does not read {name[:100]!r}"
            raise BadRequest(text, param=param, code="unsupported_parameter")
    effort = conversation.wish.effort
    if effort not in ("", "none"):
        if not template.reads(_EFFORT):
            if conversation.wish.effort_field:
                return use if thinks is None else _switched(model, use, thinks=thinks, param="thinking")
            text = "this model's chat template knows no effort of reasoning"
            raise BadRequest(text, param=_EFFORT, code="unsupported_parameter")
        return replace(use, values={**use.values, _EFFORT: effort})
    if effort:
        return _switched(model, use, thinks=False, param=_EFFORT)
    return use if thinks is None else _switched(model, use, thinks=thinks, param="thinking")


def unheard(model: ServedModel, conversation: Conversation) -> tuple[str, ...]:
    """Fields about reasoning that this model's template cannot follow, where that is no fault."""
    wish, template = conversation.wish, model.template
    is_lost = bool(wish.effort and wish.effort_field) and not (template is not None and template.reads(_EFFORT))
    return (wish.effort_field,) if is_lost else ()


def _switched(model: ServedModel, use: TemplateUse, *, thinks: bool, param: str) -> TemplateUse:
    """``use`` with reasoning turned on or off; a model that never reasons needs no switch to be off."""
    template = model.template
    switch = None if template is None else next(filter(template.reads, _SWITCHES), None)
    if switch is not None:
        return replace(use, values={**use.values, switch: thinks})
    if not thinks and (model.chat.reasoning is not None or model.chat.is_framed):
        raise BadRequest("this model cannot answer without reasoning", param=param, code="unsupported_parameter")
    return use


def _with_system_first(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """Messages for a template that takes system texts at the beginning alone; they keep a name that all have."""
    texts = [message.content for message in messages if message.role == "system"]
    names = {message.name for message in messages if message.role == "system"}
    others = [message for message in messages if message.role != "system"]
    name = names.pop() if len(names) == 1 else ""
    return (*([ChatMessage("system", "\n\n".join(texts), name=name)] if texts else []), *others)


def output_shape(model: ServedModel, body: GenerationBody, prompts: Sequence[Sequence[int]]) -> OutputShape | None:
    """Forms of a chat's output; ``None`` where there are none, which costs nothing."""
    conversation = body.prompts[0]
    if not isinstance(conversation, Conversation):
        return None
    syntax = model.chat.syntax if conversation.tools.may_call else None
    grammar = body.options.grammar
    is_bound = grammar is not None and grammar.kind != GrammarKind.JSON_SCHEMA
    tags = None if is_bound else model.chat.reasoning
    frame = None if is_bound or not model.chat.is_framed else model.chat.syntax.frame
    if frame is not None:
        return OutputShape(syntax=model.chat.syntax, frame=frame)
    if syntax is None and tags is None:
        return None
    end = "" if tags is None else model.tokenizer.decode(prompts[0][-_NUM_LAST_IDS:], skip_special=False)
    is_reasoning = tags is not None and end.rstrip().endswith(tags.begin)
    schemas = {tool.name: tool.parameters or {} for tool in conversation.tools.tools} if syntax is not None else {}
    return OutputShape(syntax=syntax, reasoning=tags, is_reasoning=is_reasoning, schemas=schemas)


def special_ids(model: ServedModel, shape: OutputShape) -> dict[str, int]:
    """Added tokens that the output's forms are written with, by their spelling.

    They need not be special (Qwen 3, GLM): grammars never take one of the form ``<...>`` for its text.
    """
    spellings = () if shape.syntax is None else shape.syntax.special
    tags = () if shape.reasoning is None else (shape.reasoning.begin, shape.reasoning.end)
    added, special = model.tokenizer.added_tokens, model.tokenizer.special_tokens
    found = {text: added[text] for text in (*spellings, *tags) if text in added}
    if shape.reasoning is not None:
        found |= {text: token for text, token in special.items() if shape.reasoning.begin.startswith(text)}
    return found


def tool_mode(body: GenerationBody) -> ToolMode:
    """How the answer may use tools."""
    prompt = body.prompts[0]
    return prompt.tools.mode if isinstance(prompt, Conversation) and prompt.tools.may_call else ToolMode.NONE
