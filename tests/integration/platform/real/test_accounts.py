"""Limits, metrics and traces of a running platform with the shipped model: its own answers are the measure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.observed.exposition import undeclared
from tests.support.observed.span_trees import assert_sound, tree
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import PlatformProcess

LONG = "import os\nimport sys\n" * 40
"""A prompt that a prefill worker computes."""
TENANTS: dict[str, dict[str, Any]] = {
    "rated": {"plan": "standard", "overrides": {"requests_per_min": None, "tokens_per_min": 4, "burst_s": 3600}},
    "single": {"plan": "local", "overrides": {"max_sequences": 1}},
    "counted": {"plan": "local"},
}
CAPACITY = 240
"""Tokens of the tenant rated, which come back at one in a quarter of a minute."""


@pytest.fixture(scope="module")
def keys(real_platform: PlatformProcess) -> dict[str, str]:
    admin = real_platform.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip()
    headers, url = {"authorization": f"Bearer {admin}"}, f"{real_platform.facts()['admin_url']}/admin/v1"
    with httpx.Client(base_url=url, headers=headers, timeout=LIMIT_S, trust_env=False) as http:
        assert http.post("/declaration", json={"tenants": TENANTS}).status_code == 200
        return {name: http.post("/keys", json={"tenant": name}).json()["key"] for name in TENANTS}


def client_of(platform: PlatformProcess, key: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=platform.base_url, headers=headers, timeout=None, trust_env=False)


def complete(http: httpx.Client, prompt: Any = (5, 6, 7, 8), max_tokens: int = 8, **more: Any) -> httpx.Response:
    body = {"model": "base", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}
    return http.post("/completions", json=body)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    assert answer.is_error, answer.text
    return answer.status_code, answer.json()["error"]["code"]


def test_tokens_are_reserved_and_settled_to_what_was_made(real_platform: PlatformProcess, keys: dict[str, str]) -> None:
    with client_of(real_platform, keys["counted"]) as free:
        text = complete(free).json()["choices"][0]["text"]
    with client_of(real_platform, keys["rated"]) as http:
        short = complete(http, max_tokens=200, stop=text[2:4])
        assert short.status_code == 200, (short.text, dict(short.headers))
        assert short.json()["usage"]["completion_tokens"] < 10, "it gives most of its reservation back"
        wait_until(lambda: complete(http, max_tokens=200).status_code == 200, "the settlement")
        refused = complete(http, max_tokens=100)
        assert refusal(refused) == (429, "rate_limit_exceeded")
        assert int(refused.headers["x-ratelimit-remaining-tokens"]) < CAPACITY - 200
        assert refusal(complete(http, max_tokens=CAPACITY)) == (429, "request_over_rate_limit")


def test_sequences_at_once_are_bounded_and_come_back_when_a_client_leaves(
    real_platform: PlatformProcess, keys: dict[str, str]
) -> None:
    body = {"model": "base", "prompt": [5, 6, 7], "max_tokens": 3500, "ignore_eos": True, "stream": True}
    with client_of(real_platform, keys["single"]) as http:
        with http.stream("POST", "/completions", json=body) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()  # kept: without its iterator the stream is closed
            assert next(lines).startswith("data: {")
            assert refusal(complete(http)) == (429, "concurrency_limit")
        wait_until(lambda: complete(http).status_code == 200, "its place")


def samples(platform: PlatformProcess, process: str) -> Counter[str]:
    """Sums of all samples of a process by name, of one tenant where they are by tenant, and by outcome."""
    address = platform.processes()[process]["metrics_address"]
    found: Counter[str] = Counter()
    text = httpx.get(f"http://{address}/metrics", trust_env=False, timeout=LIMIT_S).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("tenant", "counted") == "counted":
                found[" ".join(filter(None, (sample.name, sample.labels.get("outcome"))))] += sample.value
    return found


def test_metrics_equal_the_clients_own_count(real_platform: PlatformProcess, keys: dict[str, str]) -> None:
    names = ("gateway-0", "decode-0")
    before = {name: samples(real_platform, name) for name in names}
    with client_of(real_platform, keys["counted"]) as http:
        answers = [complete(http, [*range(number, number + 40)], n=1 + number % 2) for number in range(6)]
        assert complete(http, model="unknown").status_code == 404
    usages = [answer.json()["usage"] for answer in answers]
    num_output = sum(usage["completion_tokens"] for usage in usages)
    expected = {
        "stratos_output_tokens_total": num_output,
        "stratos_prompt_tokens_total": sum(usage["prompt_tokens"] for usage in usages),
        "stratos_request_outcomes_total finished": len(usages),
        "stratos_request_outcomes_total refused": 1,
    }

    def is_counted() -> bool:
        grown = {name: samples(real_platform, name) - before[name] for name in names}
        own = {name: grown["gateway-0"][name] for name in expected}
        return own == expected and grown["decode-0"]["stratos_engine_output_tokens_total"] >= num_output

    wait_until(is_counted, "the counts of the clients in the metrics")


def test_every_series_of_every_process_is_documented(real_platform: PlatformProcess) -> None:
    assert undeclared(real_platform) == set()


def test_one_trace_from_the_http_request_to_the_engines_steps(
    real_platform: PlatformProcess, collector: OtlpReceiver, keys: dict[str, str]
) -> None:
    with client_of(real_platform, keys["counted"]) as http:
        answer = complete(http, LONG, max_tokens=12)
    assert answer.json()["usage"]["completion_tokens"] == 12
    trace_id = answer.headers["traceparent"].split("-")[1]
    wait_until(lambda: len(collector.spans(trace_id)) >= 10, "ten spans of a trace")
    spans = collector.spans(trace_id)
    assert_sound(spans)
    assert tree(spans) == {
        "gateway POST /v1/completions": {
            "gateway place": {"router Schedule": {}},
            "gateway attempt": {
                "decode-worker fetch": {"prefill-worker prefill": {"prefill-worker engine.prefill": {}}},
                "decode-worker decode": {"decode-worker engine.prefill": {}, "decode-worker engine.decode": {}},
            },
        }
    }
    assert not [span for span in spans if span.is_failed]
    assert "import sys" not in repr(spans)
