"""Bodies of /v1/moderations -> texts."""

from __future__ import annotations

from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import check_model_name, check_num_inputs
from stratos_gateway.openai.fields import Fields, object_fields

_INPUT = "input must be a string, or a non-empty list of strings or of parts of type text"


def parse_moderation(body: dict[str, Any]) -> tuple[str, ...]:
    """Check a body; the policy of the tenant's plan answers, whatever model is named.

    Raises:
        BadRequest: says which parameter is wrong, and how.
    """
    fields = Fields(body)
    value, model = fields.take("input"), fields.take("model")
    if model is not None:
        check_model_name(model)
    fields.end()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise BadRequest(_INPUT, param="input")
    check_num_inputs(len(value))
    return tuple(_text(entry, f"input[{index}]") for index, entry in enumerate(value))


def _text(value: Any, param: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise BadRequest(_INPUT, param="input")
    fields = object_fields(value, param)
    kind, text = fields.take("type"), fields.take("text")
    if kind != "text":
        raise BadRequest(f"{param}: only texts are supported", param=param, code="unsupported_parameter")
    fields.end()
    if not isinstance(text, str):
        raise BadRequest(f"{param}.text must be a string", param=f"{param}.text")
    return text
