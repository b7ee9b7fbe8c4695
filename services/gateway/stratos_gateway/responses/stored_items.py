"""Input items as they are kept and shown again: in the full form of the API, each with an id."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from stratos_gateway.http.body import written

Item = dict[str, Any]
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
_FIELDS = {
    "message": ("role",),
    "reasoning": ("summary", "content", "encrypted_content"),
    "function_call": ("call_id", "name", "namespace", "arguments"),
    "function_call_output": ("call_id", "output"),
}
_MAX_ID_CHARS = 128


def stored_items(checked_input: str | Sequence[Mapping[str, Any]]) -> list[Item]:
    """Items of an input that was checked.

    Raises:
        BadRequest: they cannot be written: parts may have fields that are not looked at, of any depth.
    """
    if isinstance(checked_input, str):
        return [_item({"role": "user", "content": checked_input})]
    items = [_item(entry) for entry in checked_input]
    written({"input": items})
    return items


def _item(entry: Mapping[str, Any]) -> Item:
    kind = entry.get("type") or "message"
    given, status = entry.get("id"), entry.get("status")
    is_id = isinstance(given, str) and 0 < len(given) <= _MAX_ID_CHARS
    item = {
        "type": kind,
        "id": given if is_id else f"{_PREFIXES[kind]}_{secrets.token_hex(16)}",
        "status": status if status in ("in_progress", "incomplete") else "completed",
        **{name: entry[name] for name in _FIELDS[kind] if entry.get(name) is not None},
    }
    if kind == "message":
        item["content"] = _parts(entry["content"], entry["role"])
    if kind == "reasoning":
        item.setdefault("summary", [])
    return item


def _parts(content: Any, role: str) -> Any:
    """A text as the part that it stands for."""
    if not isinstance(content, str):
        return content
    if role == "assistant":
        return [{"type": "output_text", "text": content, "annotations": [], "logprobs": []}]
    return [{"type": "input_text", "text": content}]
