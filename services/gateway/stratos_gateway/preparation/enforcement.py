"""Answers that must obey: a grammar made of the model's own syntax and the schemas of tools and content."""

from __future__ import annotations

import json
from dataclasses import replace

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import GrammarKind, calls_grammar, schema_grammar
from stratos.core.requests.tools import ToolUse
from stratos.text.output.call_grammar import (
    bound_shape,
    call_grammar,
    end_of_reasoning,
    enforced_schemas,
    is_enforced,
)
from stratos.text.output.parser import OutputShape
from stratos_gateway.answering.finished import FinishedCheck, Obligations
from stratos_gateway.models.grammar_check import GrammarCheck
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.fields import WantedGrammar
from stratos_gateway.openai.rendering import Answer
from stratos_gateway.openai.requests import Conversation, GenerationBody
from stratos_gateway.preparation.output_shape import special_ids, unheard

_BUDGET = "thinking_token_budget"


async def enforce(
    model: ServedModel, body: GenerationBody, shape: OutputShape | None, tenant: str
) -> tuple[GenerationBody, OutputShape | None]:
    """The body with the grammar of its whole output, and how that is read, where something is to obey.

    Raises:
        BadRequest: the grammar cannot be used; ``param`` is the schema that is the reason.
    """
    [conversation, *_] = body.prompts
    if not isinstance(conversation, Conversation):
        return body, shape
    body, budget = _budgeted(model, body, conversation, shape)
    use, wanted = conversation.tools, body.options.grammar
    if shape is None or (wanted is None and not is_enforced(use) and budget is None):
        return body, shape
    content, param = None, "tools" if use.may_call else _BUDGET
    if wanted is not None:
        content, param = json.loads(wanted.spec.text), param if use.may_call else wanted.param
        shape = bound_shape(shape)
    text = call_grammar(use, shape, special_ids(model, shape), content, budget)
    spec = calls_grammar(text, [*enforced_schemas(use), content], param)
    try:
        await model.grammars.check(spec, param, tenant)
    except BadRequest:
        if wanted is not None:
            await model.grammars.check(wanted.spec, wanted.param, tenant)
        await _find_reason(model.grammars, use, tenant)
        raise
    grammar = WantedGrammar(spec, param, content, _told(use, has_content=wanted is not None))
    return replace(body, options=replace(body.options, grammar=grammar)), shape


def finished_check(answer: Answer, body: GenerationBody, *, is_part: bool) -> FinishedCheck | None:
    """The look at the end of an answer whether it obeys.

    Args:
        answer: that is checked.
        body: with the grammar of the whole output.
        is_part: it is the rest of an earlier one, whose text is known only where something is looked for in it.
    """
    grammar = body.options.grammar
    if grammar is None or (is_part and answer.shape is None):
        return None
    [first, *_] = body.prompts
    use = first.tools if isinstance(first, Conversation) and is_enforced(first.tools) else None
    content = grammar.schema
    if content is None and use is None:
        return None
    stop_ids = frozenset(body.options.sampling.get("stop_token_ids", ()))
    return FinishedCheck(answer, Obligations(content=content, use=use, stop_ids=stop_ids))


def _told(use: ToolUse, *, has_content: bool) -> str | None:
    """How receipts call the grammar: ``None`` by its own kind, which is that of calls."""
    if use.may_call and (has_content or is_enforced(use)):
        return None
    return GrammarKind.JSON_SCHEMA if has_content else ""


def _budgeted(
    model: ServedModel, body: GenerationBody, conversation: Conversation, shape: OutputShape | None
) -> tuple[GenerationBody, int | None]:
    """The body with the budget of reasoning that holds, and that budget; where it cannot hold the body names it.

    Raises:
        BadRequest: it cannot hold, and that is a fault.
    """
    wish, ignored = conversation.wish, unheard(model, conversation)
    body = replace(body, ignored=(*body.ignored, *ignored)) if ignored else body
    is_off = conversation.thinks is False or wish.effort == "none"
    is_plain = shape is None and (model.chat.reasoning is not None or model.chat.is_framed)
    if wish.budget is None or is_off or is_plain:
        return body, None  # where a grammar forbids reasoning, no budget is needed
    if shape is not None and end_of_reasoning(shape) in special_ids(model, shape):
        return replace(body, reasoning_budget=wish.budget), wish.budget
    if wish.budget_field:
        return replace(body, ignored=(*body.ignored, wish.budget_field)), None
    text = "this model does not reason, or the end of its reasoning is no added token, so no budget holds"
    raise BadRequest(text, param=_BUDGET, code="unsupported_parameter")


async def _find_reason(grammars: GrammarCheck, use: ToolUse, tenant: str) -> None:
    """Raise for the one tool whose schema is the reason, if one is."""
    for tool in use.tools:
        if tool.parameters is not None:
            param = f"{tool.place}.parameters"
            await grammars.check(schema_grammar(dict(tool.parameters), param), param, tenant)
