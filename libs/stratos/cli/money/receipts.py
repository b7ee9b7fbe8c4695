"""``stratos explain``: the receipt of one request, for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from stratos.common.error_codes import error_from_code
from stratos.common.errors import DependencyDown, NotFound
from stratos.core.ledger.sums import WRITE_MEASURES

_TIMEOUT_S = 10.0
_RETRY_S = 0.2
Sections = Mapping[str, Any]


def read_receipt(base_url: str, api_key: str, request_id: str, *, wait_s: float = 2.0) -> dict[str, Any]:
    """Ask a gateway; a receipt is written a moment after the answer, so one that is missing is waited for.

    Args:
        base_url: of the OpenAI API, ends in /v1.
        api_key: of the request's tenant.
        request_id: x-request-id of the answer.
        wait_s: for a receipt that is not there yet.

    Raises:
        NotFound: there is no such receipt of this tenant.
        StratosError: what the API answers; ``DependencyDown`` where it does not.
    """
    headers, last_s = {"authorization": f"Bearer {api_key}"}, time.monotonic() + wait_s
    with httpx.Client(base_url=base_url, headers=headers, timeout=_TIMEOUT_S, trust_env=False) as client:
        while True:
            try:
                return _read(client, request_id)
            except NotFound:
                if time.monotonic() >= last_s:
                    raise
            time.sleep(_RETRY_S)


def _read(client: httpx.Client, request_id: str) -> dict[str, Any]:
    try:
        answer = client.get(f"requests/{request_id}/receipt")
        content: dict[str, Any] = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise DependencyDown(f"the gateway does not answer: {error or type(error).__name__}") from error
    if answer.is_error:
        found = content.get("error", {})
        raise error_from_code(str(found.get("code", "")), str(found.get("message", "")), http_status=answer.status_code)
    return content


def receipt_text(receipt: Sections) -> str:
    """One block a section, in the order of the receipt; a section without a form of its own as its facts."""
    lines = [f"request {receipt['id']}"]
    for name, section in receipt.items():
        if name not in ("object", "id"):
            lines += _FORMS.get(name, _facts)(name, section)
    return "\n".join(lines)


def _facts(name: str, section: Any) -> list[str]:
    items = section if isinstance(section, list) else [section]
    return [f"  {name:<12}{_pairs(item) if isinstance(item, Mapping) else item}" for item in items]


def _limits(_: str, limits: Any) -> list[str]:
    return [
        f"  limit       {one['kind']}: {one['claimed']:g} of {one['limit']} claimed, "
        f"{one['left_here']:g} left at this gateway" + ("" if one["left"] is None else f", {one['left']:g} in all")
        for one in limits
    ]


def _generations(_: str, generations: Any) -> list[str]:
    lines: list[str] = []
    for one in generations:
        lines.append(f"  generation  {_pairs({k: v for k, v in one.items() if k != 'attempts'})}")
        lines += [f"    attempt {number}  {_waited(attempt)}" for number, attempt in enumerate(one.get("attempts", ()))]
    return lines


def _billed(_: str, entries: Any) -> list[str]:
    if not entries:
        return ["  billed      not written yet, or not kept any more"]
    names = ("due", "gross", "credit", "prompt_tokens", "cached_tokens", "output_tokens", "plan")
    return [
        # most entries have nothing of what is kept
        f"  billed      {_pairs({n: entry[n] for n in names} | {n: entry.get(n) or None for n in WRITE_MEASURES})} "
        "(micro-units)"
        for entry in entries
    ]


def _pairs(facts: Sections) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in facts.items() if value not in (None, "", [], {}))


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={one}" for name, one in value.items())
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _waited(facts: Sections) -> str:
    """One line; the way through the queue as requests before it at milliseconds."""
    positions = [f"{count}@{at_ms}ms" for at_ms, count in facts.get("queue", ())]
    return _pairs({**facts, "queue": " ".join(positions)})


def _answer(name: str, facts: Any) -> list[str]:
    return [f"  {name:<12}{_waited(facts)}"]


_FORMS: Mapping[str, Callable[[str, Any], list[str]]] = {
    "limits": _limits,
    "generations": _generations,
    "answer": _answer,
    "billed": _billed,
}
