"""Drafts through the whole platform: a request may turn them off, its receipt counts them, and no token changes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.paths import MODELS
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import PlatformProcess

CODE = "def get(self, name):\n    return self.values[name]\n\n\n" * 6
SCHEMA = {
    "type": "object",
    "properties": {"temperature": {"type": "integer"}, "sky": {"enum": ["sunny", "cloudy"]}},
    "required": ["temperature", "sky"],
    "additionalProperties": False,
}


def answered(client: httpx.Client, name: str, **fields: Any) -> tuple[list[int], dict[str, Any]]:
    """Tokens of a completion, and the section of its receipt."""
    body, section = told(client, name, **fields)
    return body["choices"][0]["token_ids"], section


def told(client: httpx.Client, name: str, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A completion, and the section of its receipt."""
    body = {"model": "base", "prompt": CODE, "max_tokens": 48, "temperature": 0, "return_token_ids": True, **fields}
    answer = client.post("/completions", json=body, headers={"x-request-id": name})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = {}

    def is_there() -> bool:
        receipt = client.get(f"/requests/{name}/receipt")
        found.update(receipt.json() if receipt.status_code == 200 else {})
        return bool(found)

    wait_until(is_there)
    return answer.json(), found["generations"][0]


def counted(platform: PlatformProcess) -> dict[str, float]:
    """Drafted tokens by the metrics of the decode worker."""
    address = platform.processes()["decode-0"]["metrics_address"]
    text = httpx.get(f"http://{address}/metrics", trust_env=False, timeout=LIMIT_S).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    names = ("drafted", "accepted", "cut")
    return {n: sum(s.value for s in samples if s.name == f"stratos_engine_{n}_tokens_total") for n in names}


def test_a_receipt_counts_drafts_and_a_request_can_turn_them_off(real_platform):
    headers = {"authorization": f"Bearer {real_platform.api_key}"}
    with httpx.Client(base_url=real_platform.base_url, headers=headers, timeout=LIMIT_S) as client:
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
    with httpx.Client(base_url=real_platform.base_url, headers=headers, timeout=LIMIT_S) as client:
        before = counted(real_platform)
        ids, section = answered(client, "schema", prompt="weather: ", **form)
        assert section["accepted_tokens"] > 0
        receipt = {name: section[f"{name}_tokens"] for name in before}
        assert receipt == {name: value - before[name] for name, value in counted(real_platform).items()}
        assert answered(client, "schema-plain", prompt="weather: ", speculation="off", **form)[0] == ids


def test_a_stop_inside_an_accepted_run_ends_where_it_does_without_drafts(real_platform):
    """At nine places in a row; what repeats itself is long in a stop string, so that it comes after some drafts."""
    headers = {"authorization": f"Bearer {real_platform.api_key}"}
    with httpx.Client(base_url=real_platform.base_url, headers=headers, timeout=LIMIT_S) as client:
        whole, section = told(client, "whole")
        text, ids = whole["choices"][0]["text"], whole["choices"][0]["token_ids"]
        assert section["accepted_tokens"] > len(ids) / 2
        for place in range(len(text) // 2, len(text) // 2 + 9):
            stop = text[place - 60 : place]
            before = counted(real_platform)["accepted"]
            drafted, _ = told(client, f"stop-{place}", stop=[stop])
            assert counted(real_platform)["accepted"] > before
            plain, _ = told(client, f"stop-plain-{place}", stop=[stop], speculation="off")
            assert (drafted["choices"], drafted["usage"]) == (plain["choices"], plain["usage"])
            assert drafted["choices"][0]["text"] == text[: text.index(stop)]


@pytest.mark.slow
def test_an_added_model_drafts_as_its_record_says(real_platform):
    """The default drafts as well, so what the record turns off shows first; a changed record starts other workers."""
    admin = ("--key", real_platform.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip())
    add = ("models", "add", "draft", str(MODELS / "draft"), "--wait-s", "100", *admin, "--speculative-config")
    refused = real_platform.stratos(*add, '{"method": "ngram", "num_speculative_tokens": 0}', check=False)
    assert (refused.returncode, "nor between 1 and 16" in refused.stderr) == (1, True)
    headers, found = {"authorization": f"Bearer {real_platform.api_key}"}, {}
    with httpx.Client(base_url=real_platform.base_url, headers=headers, timeout=LIMIT_S) as client:
        for method in ("off", "ngram"):
            before = set(real_platform.processes())
            real_platform.stratos(*add, json.dumps({"method": method, "num_speculative_tokens": 4}))
            wait_until(lambda before=before: len(set(real_platform.processes()) - before) == 2)
            wait_until(lambda before=before: len(drafters(real_platform)) == 1)
            found[method] = answered(client, f"by-{method}", model="draft")
    [row] = json.loads(real_platform.stratos("models", "show", "draft", *admin).stdout)
    assert row["speculation"] == {"method": "ngram", "model": "", "num_speculative_tokens": 4}
    (plain, without), (ids, section) = found["off"], found["ngram"]
    assert ids == plain
    assert "drafted_tokens" not in without
    assert section["drafted_tokens"] >= section["accepted_tokens"] > 0
    real_platform.stratos("models", "remove", "draft", *admin)


def drafters(platform: PlatformProcess) -> list[str]:
    """Decode workers of the added model."""
    return [name for name in platform.processes() if name.startswith("decode-draft-")]
