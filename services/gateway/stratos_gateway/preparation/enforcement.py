"""Answers that must obey: a grammar made of the model's own syntax and the schemas of tools and content."""

from __future__ import annotations

import json
from dataclasses import replace

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import GrammarKind, calls_grammar, schema_grammar
from stratos.core.requests.tools import ToolUse
from stratos.text.output.call_grammar import bound_shape, call_grammar, enforced_schemas, is_enforced
from stratos.text.output.parser import OutputShape
from stratos_gateway.models.grammar_check import GrammarCheck
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.fields import WantedGrammar
from stratos_gateway.openai.requests import Conversation, GenerationBody
from stratos_gateway.preparation.output_shape import special_ids


async def enforce(
    model: ServedModel, body: GenerationBody, shape: OutputShape | None, tenant: str
) -> tuple[GenerationBody, OutputShape | None]:
    """The body with the grammar of its whole output, and how that is read, where something is to obey.

    Raises:
        BadRequest: the grammar cannot be used; ``param`` is the schema that is the reason.
    """
    [conversation, *_] = body.prompts
    if shape is None or not isinstance(conversation, Conversation):
        return body, shape
    use, wanted = conversation.tools, body.options.grammar
    if wanted is None:
        if not is_enforced(use):
            return body, shape
        content, param = None, "tools"
    else:
        content, param = json.loads(wanted.spec.text), "tools" if use.may_call else wanted.param
        shape = bound_shape(shape)
    text = call_grammar(use, shape, special_ids(model, shape), content)
    spec = calls_grammar(text, [*enforced_schemas(use), content], param)
    try:
        await model.grammars.check(spec, param, tenant)
    except BadRequest:
        if wanted is not None:
            await model.grammars.check(wanted.spec, wanted.param, tenant)
        await _find_reason(model.grammars, use, tenant)
        raise
    asked = None if wanted is None or use.may_call else GrammarKind.JSON_SCHEMA
    return replace(body, options=replace(body.options, grammar=WantedGrammar(spec, param, asked))), shape


async def _find_reason(grammars: GrammarCheck, use: ToolUse, tenant: str) -> None:
    """Raise for the one tool whose schema is the reason, if one is."""
    for tool in use.tools:
        if tool.parameters is not None:
            param = f"{tool.place}.parameters"
            await grammars.check(schema_grammar(dict(tool.parameters), param), param, tenant)
