"""Calls that are enforced: the grammar of an answer, made of the model's own syntax and the schemas of the tools."""

from __future__ import annotations

import json
from dataclasses import replace

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import calls_grammar, schema_grammar
from stratos.core.requests.tools import ToolMode, ToolUse
from stratos.text.output.call_grammar import call_grammar, enforced_schemas, is_enforced
from stratos.text.output.parser import OutputShape
from stratos_gateway.models.grammar_check import GrammarCheck
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.fields import WantedGrammar
from stratos_gateway.openai.requests import Conversation, GenerationBody
from stratos_gateway.preparation.output_shape import special_ids


async def enforce_calls(
    model: ServedModel, body: GenerationBody, shape: OutputShape | None, tenant: str
) -> GenerationBody:
    """The body with a grammar, where its tools ask for one.

    Raises:
        BadRequest: the grammar cannot be used; ``param`` is the schema that is the reason.
    """
    [conversation, *_] = body.prompts
    if shape is None or not isinstance(conversation, Conversation) or not conversation.tools.may_call:
        return body
    use, wanted = conversation.tools, body.options.grammar
    if wanted is None and not is_enforced(use):
        return body
    assert shape.syntax is not None, "there are tools"
    form = shape.syntax.form
    if form is None or (use.mode is ToolMode.AUTO and not form.is_marked):
        text = f"calls in the syntax of this model ({shape.syntax.name}) cannot be enforced"
        param = _param(use) if wanted is None else wanted.param
        raise BadRequest(text, param=param, code="unsupported_parameter")
    content = None if wanted is None else json.loads(wanted.spec.text)
    text = call_grammar(use, shape, special_ids(model, shape), content)
    spec = calls_grammar(text, [*enforced_schemas(use), content], "tools")
    try:
        await model.grammars.check(spec, "tools", tenant)
    except BadRequest:
        if wanted is not None:
            await model.grammars.check(wanted.spec, wanted.param, tenant)
        await _find_reason(model.grammars, use, tenant)
        raise
    return replace(body, options=replace(body.options, grammar=WantedGrammar(spec, "tools")))


async def _find_reason(grammars: GrammarCheck, use: ToolUse, tenant: str) -> None:
    """Raise for the one tool whose schema is the reason, if one is."""
    for tool in use.tools:
        if tool.parameters is not None:
            param = f"{tool.place}.parameters"
            await grammars.check(schema_grammar(dict(tool.parameters), param), param, tenant)


def _param(use: ToolUse) -> str:
    """The field that asks for it."""
    if not use.is_parallel:
        return "parallel_tool_calls"
    return "tools" if any(tool.is_strict for tool in use.tools) else "tool_choice"
