"""Fields of a chat that are about its template: how the conversation ends, what else the template reads, effort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.tools import MAX_SCHEMA_DEPTH, MAX_SCHEMA_VALUES, ValueBudget
from stratos.text.chat_template import TemplateUse
from stratos_gateway.openai.fields import Fields, object_fields

_RESERVED = ("messages", "tools", "add_generation_prompt")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def check_effort(value: Any, param: str) -> str:
    """Check how much a model is to reason; empty leaves it to its template. Whether it can is for its model to say.

    Raises:
        BadRequest: no effort that the API has.
    """
    if value is None:
        return ""
    if value not in _EFFORTS:
        raise BadRequest(f"{param} must be one of {', '.join(_EFFORTS)}", param=param)
    return str(value)


def take_template_use(fields: Fields) -> TemplateUse:
    """How a conversation ends, and values of the client for its template.

    Raises:
        BadRequest: both ends at once, or values that are not for clients.
    """
    begins, continues = fields.flag("add_generation_prompt", default=True), fields.flag("continue_final_message")
    values = take_template_values(fields)
    if begins and continues:
        text = "continue_final_message needs add_generation_prompt: false"
        raise BadRequest(text, param="continue_final_message")
    return TemplateUse(
        begins_answer=begins,
        continues_last=continues,
        values=values,
        adds_special=fields.flag("add_special_tokens"),
    )


def take_template_values(fields: Fields) -> Mapping[str, Any]:
    """Values of the client for its template, as every dialect has them; raises ``BadRequest``."""
    param = "chat_template_kwargs"
    values = fields.take(param)
    if values is None:
        return {}
    object_fields(values, param)
    ValueBudget(MAX_SCHEMA_VALUES, MAX_SCHEMA_DEPTH).check(values, param)
    _check_names(values, param)
    return dict(values)


def _check_names(values: Mapping[str, Any], param: str) -> None:
    for name in _RESERVED:
        if name in values:
            raise BadRequest(f"{param}.{name} has a field of its own", param=f"{param}.{name}")
