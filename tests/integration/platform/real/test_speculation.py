"""Drafts through the whole platform: a request may turn them off, its receipt counts them, and no token changes."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.waiting import wait_until

CODE = "def get(self, name):\n    return self.values[name]\n\n\n" * 6
SCHEMA = {
    "type": "object",
    "properties": {"temperature": {"type": "integer"}, "sky": {"enum": ["sunny", "cloudy"]}},
    "required": ["temperature", "sky"],
    "additionalProperties": False,
}


def answered(client: httpx.Client, name: str, **fields: Any) -> tuple[list[int], dict[str, Any]]:
    """Tokens of a completion, and the section of its receipt."""
    body = {"model": "base", "prompt": CODE, "max_tokens": 48, "temperature": 0, "return_token_ids": True, **fields}
    answer = client.post("/completions", json=body, headers={"x-request-id": name})
    assert answer.status_code == 200, answer.text
    ids = answer.json()["choices"][0]["token_ids"]
    found: dict[str, Any] = {}

    def is_there() -> bool:
        receipt = client.get(f"/requests/{name}/receipt")
        found.update(receipt.json() if receipt.status_code == 200 else {})
        return bool(found)

    wait_until(is_there)
    return ids, found["generations"][0]


def test_a_receipt_counts_drafts_and_a_request_can_turn_them_off(real_platform):
    headers = {"authorization": f"Bearer {real_platform.api_key}"}
    with httpx.Client(base_url=real_platform.base_url, headers=headers, timeout=60) as client:
        ids, section = answered(client, "drafted")
        assert section["drafted_tokens"] >= section["accepted_tokens"] > 0
        again, without = answered(client, "undrafted", speculation="off")
        assert again == ids
        assert "drafted_tokens" not in without
        answer = client.post("/completions", json={"model": "base", "prompt": "a", "speculation": "on"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "speculation")


def test_a_schema_is_drafted_as_far_as_it_is_forced(real_platform):
    headers = {"authorization": f"Bearer {real_platform.api_key}"}
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}}
    with httpx.Client(base_url=real_platform.base_url, headers=headers, timeout=60) as client:
        ids, section = answered(client, "schema", prompt="weather: ", **form)
        assert section["accepted_tokens"] > 0
        assert answered(client, "schema-plain", prompt="weather: ", speculation="off", **form)[0] == ids
