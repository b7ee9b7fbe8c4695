"""Answers of a real engine that ended early go on after the whole platform was stopped and started over its data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.waiting import LIMIT_S
from tests.support.worlds.platform_process import PlatformProcess, running_platform

BLOCK_BYTES = 16 * 6144
SMALL, LARGE = 32, 96
"""Blocks of the decode worker's pool: 512 tokens before, which the answer needs more than, and 1,536 after."""
NUM_TOKENS, BOUND = 900, 10
PLANS: dict[str, Any] = {"plans": {"short": {"max_tokens": BOUND}}, "tenants": {"acme": {"plan": "short"}}}
STORY = {"prompt": "def read_lines(path):\n", "temperature": 1.0, "seed": 11, "ignore_eos": True, "model": "base"}


def ask(http: httpx.Client, **more: Any) -> dict[str, Any]:
    answer = http.post("/completions", json={**STORY, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def text_of(*answers: dict[str, Any]) -> str:
    return "".join(answer["choices"][0]["text"] for answer in answers)


def short_key(platform: PlatformProcess) -> str:
    """Key of a tenant whose plan bounds its answers."""
    admin = platform.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip()
    headers = {"authorization": f"Bearer {admin}"}
    with httpx.Client(base_url=f"{platform.facts()['admin_url']}/admin/v1", headers=headers, timeout=LIMIT_S) as http:
        assert http.post("/declaration", json=PLANS).status_code == 200
        return str(http.post("/keys", json={"tenant": "acme"}).json()["key"])


def client_of(platform: PlatformProcess, key: str) -> httpx.Client:
    return httpx.Client(base_url=platform.base_url, headers={"authorization": f"Bearer {key}"}, timeout=LIMIT_S)


@pytest.mark.slow
def test_the_rest_comes_from_a_platform_that_was_started_again(tmp_path: Path) -> None:
    """One answer had no room in its worker's KV, another one met the bound of its plan."""
    start = partial(running_platform, tmp_path, "--max-decode", "1")
    with start(env={"STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES": str(SMALL * BLOCK_BYTES)}) as platform:
        keys = {"roomy": platform.api_key, "short": short_key(platform)}
        with client_of(platform, keys["roomy"]) as roomy, client_of(platform, keys["short"]) as short:
            crowded = ask(roomy, max_tokens=NUM_TOKENS)
            bounded = ask(short)
        assert 0 < crowded["usage"]["completion_tokens"] < NUM_TOKENS
        assert bounded["usage"]["completion_tokens"] == BOUND
        assert platform.stop() == 0
    with start(env={"STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES": str(LARGE * BLOCK_BYTES)}) as platform:
        with client_of(platform, keys["roomy"]) as roomy, client_of(platform, keys["short"]) as short:
            rest = ask(roomy, max_tokens=NUM_TOKENS, continuation_token=crowded["continuation_token"])
            more = ask(short, max_tokens=2 * BOUND, continuation_token=bounded["continuation_token"])
            whole, begun = ask(roomy, max_tokens=NUM_TOKENS), ask(roomy, max_tokens=2 * BOUND)
            again = short.post("/completions", json={**STORY, "continuation_token": bounded["continuation_token"]})
        assert text_of(crowded, rest) == text_of(whole)
        assert text_of(bounded, more) == text_of(begun)
        assert rest["usage"]["completion_tokens"] + crowded["usage"]["completion_tokens"] == NUM_TOKENS
        assert (again.status_code, again.json()["error"]["code"]) == (410, "continuation_used")
