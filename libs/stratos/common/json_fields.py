"""Records from the JSON objects that people write: unknown and impossible fields are refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from stratos.common.errors import BadRequest

T = TypeVar("T")


def from_fields(
    adapter: TypeAdapter[T], fields: Mapping[str, Any], *, what: str, param: str, most_chars: int | None = None
) -> T:
    """The record that has these fields; those it lacks have their defaults.

    Args:
        adapter: of the record.
        fields: as JSON values.
        what: names the record in a refusal.
        param: names it where no field can be blamed.
        most_chars: of a field's name in a refusal; ``None`` shows all.

    Raises:
        BadRequest: an unknown field, or a value that cannot be; ``param`` names the field.
    """
    try:
        return adapter.validate_json(json.dumps(fields))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part)[:most_chars] for part in first["loc"])
        raise BadRequest(f"{what}: {where}: {first['msg']}", param=where) from None
    except (TypeError, ValueError):
        raise BadRequest(f"{what} holds something that JSON has no form for", param=param) from None
