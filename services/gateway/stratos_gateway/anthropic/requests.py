"""Bodies of /v1/messages -> checked records; every failure is a 400 with ``param``, in the names of this API.

A field is done, or refused by name; the few that cannot change an answer are named in a header of it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import schema_grammar
from stratos.core.requests.limits import MAX_SESSION_CHARS, check_stop
from stratos.text.chat_template import PLAIN_USE, ChatMessage, TemplateUse
from stratos_gateway.anthropic.content import message_reader
from stratos_gateway.anthropic.notices import Ignored
from stratos_gateway.anthropic.tools import take_message_tools
from stratos_gateway.openai.fields import Fields, WantedGrammar, object_fields
from stratos_gateway.openai.messages import with_marks
from stratos_gateway.openai.requests import (
    NO_WISH,
    Conversation,
    GenerationBody,
    ReasoningWish,
    check_tools_and_grammar,
    take_options,
)
from stratos_gateway.openai.template_use import take_template_values

MIN_THINKING_BUDGET = 1024
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_KEPT_EDIT = "clear_thinking_20251015"
"""The one edit of a context that is done in any case: the chat template says which earlier thinking stays."""
_SCHEMA = re.compile(r"^(tools\[\d+\])\.parameters\b")
_NAMES = {"parallel_tool_calls": "tool_choice.disable_parallel_tool_use"}
_CONTINUED = TemplateUse(begins_answer=False, continues_last=True)


def message_param(param: str) -> str:
    """The name that this API has for a field of a chat."""
    return _SCHEMA.sub(r"\1.input_schema", _NAMES.get(param, param))


def parse_message(body: dict[str, Any], vocab_size: int) -> GenerationBody:
    """Check a body of /v1/messages.

    Raises:
        BadRequest: says which parameter is wrong, and how.
    """
    fields, ignored = Fields(body), Ignored()
    messages = message_reader(ignored).read(fields.take("system"), fields.take("messages"))
    tools, max_tokens = take_message_tools(fields), fields.number("max_tokens")
    messages, keep_fields = with_marks(fields, messages, tools)
    thinks, budget = _thinks(fields.take("thinking"), max_tokens)
    stop, session = _stop(fields.take("stop_sequences")), _user_id(fields.take("metadata"))
    (grammar, effort), values = _output(fields), take_template_values(fields)
    _check_context(fields.take("context_management"), ignored)
    _refuse_features(fields, ignored)
    options = take_options(
        fields, vocab_size, stream=fields.flag("stream"), max_tokens=max_tokens, num_logprobs=None, grammar=grammar
    )
    options = replace(options, stop=stop, tells_stop=True, session=session or options.session)
    check_tools_and_grammar(tools, options)
    wish = ReasoningWish(effort, budget, "output_config.effort", "thinking.budget_tokens")
    use = replace(_CONTINUED if _is_begun(messages[-1]) else PLAIN_USE, values=values)
    conversation = Conversation(messages, tools, use, thinks, wish if effort or budget else NO_WISH)
    return GenerationBody(options=options, prompts=(conversation,), ignored=ignored.names, keep_fields=keep_fields)


def _is_begun(message: ChatMessage) -> bool:
    """The client has begun the answer itself."""
    return message.role == "assistant" and bool(message.content) and not message.tool_calls


def _stop(value: Any) -> tuple[str, ...]:
    if value is not None and not isinstance(value, list):
        raise BadRequest("stop_sequences must be a list of strings", param="stop_sequences")
    return check_stop(value, "stop_sequences")


def _thinks(value: Any, max_tokens: float | None) -> tuple[bool | None, int | None]:
    """Whether the model is to reason, ``None`` leaves it to the model; and most tokens of its reasoning."""
    if value is None:
        return None, None
    fields = object_fields(value, "thinking")
    kind, budget = fields.take("type"), fields.number("budget_tokens", "max_tokens")
    fields.refuse("display", "summarized")
    fields.end()
    if kind == "between_tools":
        raise BadRequest(
            "thinking.type between_tools is not supported", param="thinking.type", code="unsupported_parameter"
        )
    if kind not in ("enabled", "adaptive", "disabled"):
        raise BadRequest("thinking.type must be enabled, adaptive or disabled", param="thinking.type")
    if kind == "enabled":
        most = max_tokens or budget or 0
        if budget is None or budget < MIN_THINKING_BUDGET or budget > most:
            text = f"thinking.budget_tokens must be at least {MIN_THINKING_BUDGET}, and below max_tokens"
            raise BadRequest(text, param="thinking.budget_tokens")
        return True, int(budget)
    return kind != "disabled", None


def _user_id(value: Any) -> str:
    """Name of the client's session."""
    if value is None:
        return ""
    fields = object_fields(value, "metadata")
    user_id = fields.take("user_id")
    fields.end()
    if user_id is not None and not isinstance(user_id, str):
        raise BadRequest("metadata.user_id must be a string", param="metadata.user_id")
    return (user_id or "")[:MAX_SESSION_CHARS]


def _output(fields: Fields) -> tuple[WantedGrammar | None, str]:
    """The schema of the answer, under its present or its older name, and the effort of its reasoning."""
    effort: str | None = None
    config, older = fields.take("output_config"), fields.take("output_format")
    given, param = older, "output_format"
    if config is not None:
        within = object_fields(config, "output_config")
        effort, newer = within.take("effort"), within.take("format")
        within.end()
        if effort is not None and effort not in _EFFORTS:
            text = f"output_config.effort must be one of {', '.join(_EFFORTS)}"
            raise BadRequest(text, param="output_config.effort")
        if newer is not None:
            given, param = newer, "output_config.format"
    if given is None:
        return None, effort or ""
    within = object_fields(given, param)
    kind, schema = within.take("type"), within.take("schema")
    within.end()
    if kind != "json_schema":
        raise BadRequest(f"{param}.type must be json_schema", param=f"{param}.type")
    path = f"{param}.schema"
    return WantedGrammar(schema_grammar({} if schema is None else schema, path), path), effort or ""


def _check_context(value: Any, ignored: Ignored) -> None:
    """Refuse edits of the context that would change what the model reads."""
    if value is None:
        return
    fields = object_fields(value, "context_management")
    edits = fields.take("edits")
    fields.end()
    if edits is not None and not isinstance(edits, list):
        raise BadRequest("context_management.edits must be a list", param="context_management.edits")
    for index, edit in enumerate(edits or ()):
        if not isinstance(edit, dict) or edit.get("type") != _KEPT_EDIT:
            param = f"context_management.edits[{index}]"
            raise BadRequest(f"{param} is not supported by this server", param=param, code="unsupported_parameter")
    ignored.add("context_management")


def _refuse_features(fields: Fields, ignored: Ignored) -> None:
    fields.refuse("service_tier", "auto", "standard_only")
    fields.refuse("mcp_servers", [])
    fields.refuse("speed", "standard")
    for name in ("container", "inference_geo", "stop", "n"):
        fields.refuse(name)
    ignored.take(fields, "diagnostics", "user_profile_id")
