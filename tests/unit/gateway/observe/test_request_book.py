"""How a request is counted at its end, and its line in the access log."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.core.ledger.pricing import Times
from stratos.core.tenancy.plan import Plan
from stratos.core.tenant import PLATFORM_TENANT
from stratos.rpc.log import JsonFormatter
from stratos.rpc.metrics import OTHER_TENANTS, TenantLabels
from stratos_gateway.http.exchange import RequestFacts
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.observe.request_book import EndedRequest, RequestBook

CLOCK = FakeClock()
ENDED = EndedRequest(
    request_id="req-1", client="10.0.0.9", method="POST", route="/v1/completions", status=200, started_s=CLOCK.now()
)
FACTS = RequestFacts(
    is_inference=True, tenant="one", key_id="k1", plan="premium", model="base", num_prompt_tokens=7,
    num_cached_tokens=4, num_output_tokens=9, ttft_us=12_345, itl_us=6_789,
)  # fmt: skip
LABELS = {"model": "llama", "class": "0"}


def make() -> tuple[CollectorRegistry, GatewayMetrics, RequestBook]:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, "llama", max_tenants=2)
    return registry, metrics, RequestBook(metrics, CLOCK)


@pytest.mark.parametrize(
    ("changes", "error", "outcome"),
    [
        ({}, "", "finished"),
        ({"status": 400}, "bad_request", "refused"),
        ({}, "content_filter", "refused"),
        ({"status": 503}, "overloaded", "failed"),
        ({"is_our_fault": True}, "worker_lost", "failed"),
        ({"status": 499}, "", "left"),
    ],
)
def test_an_end_has_one_outcome_also_within_a_stream(changes: dict[str, object], error: str, outcome: str) -> None:
    registry, _, book = make()
    book.end(replace(ENDED, **changes), replace(FACTS, error=error))
    counted = [m for family in registry.collect() for m in family.samples if m.name == "stratos_request_outcomes_total"]
    assert [(sample.labels, sample.value) for sample in counted if sample.value] == [
        ({**LABELS, "outcome": outcome}, 1)
    ]
    assert registry.get_sample_value("stratos_request_duration_seconds_count", LABELS) == 1


def test_what_a_tenants_own_limit_refuses_is_counted_by_tenant_and_code() -> None:
    registry, _, book = make()
    for tenant in ("one", "two", "three"):
        book.end(replace(ENDED, status=429), replace(FACTS, tenant=tenant, error="rate_limit_exceeded"))
    book.end(replace(ENDED, status=429), replace(FACTS, error="insufficient_quota"))
    book.end(replace(ENDED, status=400), replace(FACTS, error="invalid_request"))
    book.end(replace(ENDED, status=503), replace(FACTS, error="overloaded"))
    counted = [m for family in registry.collect() for m in family.samples if m.name == "stratos_requests_limited_total"]
    assert {(m.labels["tenant"], m.labels["code"]): m.value for m in counted} == {
        ("one", "rate_limit_exceeded"): 1,
        ("two", "rate_limit_exceeded"): 1,
        (OTHER_TENANTS, "rate_limit_exceeded"): 1,
        ("one", "insufficient_quota"): 1,
    }


def test_what_is_no_request_for_tokens_is_counted_by_its_route_alone() -> None:
    registry, _, book = make()
    book.end(replace(ENDED, route="/admin/v1/keys", status=201), replace(FACTS, is_inference=False))
    assert registry.get_sample_value("stratos_request_duration_seconds_count", LABELS) is None
    labels = {"route": "/admin/v1/keys", "status": "201"}
    assert registry.get_sample_value("stratos_requests_total", labels) == 1


def test_the_line_of_a_request_has_members_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    _, _, book = make()
    with caplog.at_level(logging.INFO, logger="stratos.access"):
        CLOCK.advance(0.5)
        book.end(ENDED, FACTS)
        book.end(replace(ENDED, method="GET", route="/readyz"), RequestFacts())
        book.end(replace(ENDED, method="GET", route="none", status=404), RequestFacts(error="unknown_route"))
    lines = [json.loads(JsonFormatter("gateway").format(record)) for record in caplog.records]
    assert len(lines) == 2, "a probe that was answered has none"
    wanted = {
        "request_id": "req-1", "tenant": "one", "key_id": "k1", "class": 0, "status": 200, "outcome": "finished",
        "prompt_tokens": 7, "cached_tokens": 4, "output_tokens": 9, "ttft_ms": 12.35, "itl_ms": 6.79,
    }  # fmt: skip
    assert {name: lines[0][name] for name in wanted} == wanted
    assert lines[0]["duration_ms"] >= 500
    assert lines[0]["message"].startswith("POST /v1/completions 200 for one: finished, 7 + 9 tokens")


def test_without_an_access_log_there_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    _, metrics, _ = make()
    with caplog.at_level(logging.INFO, logger="stratos.access"):
        RequestBook(metrics, CLOCK, logs_access=False).end(ENDED, FACTS)
    assert caplog.records == []


def test_tenants_beyond_the_bound_share_a_series() -> None:
    labels = TenantLabels(2)
    assert [labels.label_of(name) for name in ("a", "b", "c", "a", "d")] == [
        "a",
        "b",
        OTHER_TENANTS,
        "a",
        OTHER_TENANTS,
    ]
    assert labels.agree(["c", "b", "x"]) == ["a"], "the first two of them, and nothing is left"
    assert [labels.label_of(name) for name in ("a", "b", "c", PLATFORM_TENANT)] == [
        OTHER_TENANTS,
        "b",
        "c",
        PLATFORM_TENANT,
    ]
    assert labels.agree(["x"]) == ["b"], "who came last keeps what is left"
    registry, metrics, _ = make()
    for name in ("a", "b", "c", "d"):
        metrics.running(name, 1).output_tokens.inc(2)
    series = {"model": "llama", "class": "1"}
    names = "a", "b", "c", OTHER_TENANTS
    shown = [registry.get_sample_value("stratos_output_tokens_total", {"tenant": name, **series}) for name in names]
    assert shown == [2, 2, None, 4]


def test_what_the_platform_asks_itself_is_in_no_class_of_customers() -> None:
    registry, metrics, _ = make()
    metrics.running(PLATFORM_TENANT, 1).ttft.observe(1.0)
    assert registry.get_sample_value("stratos_request_ttft_seconds_count", {"model": "llama", "class": "platform"}) == 1


def test_promises_are_counted_by_plan_and_only_where_there_is_one() -> None:
    registry, metrics, _ = make()
    plan = Plan(name="premium", ttft_ms=100, itl_ms=20)
    metrics.count_promises(plan, Times(ttft_us=100_000, itl_us=20_001))
    metrics.count_promises(plan, Times(ttft_us=100_001, itl_us=None))
    metrics.count_promises(Plan(name="batch"), Times(ttft_us=1, itl_us=1))
    found = {
        (sample.labels["plan"], sample.labels["promise"], sample.labels["outcome"]): sample.value
        for family in registry.collect() for sample in family.samples if sample.name == "stratos_promises_total"
    }  # fmt: skip
    assert found == {
        ("premium", "ttft", "kept"): 1,
        ("premium", "ttft", "missed"): 1,
        ("premium", "itl", "kept"): 0,
        ("premium", "itl", "missed"): 1,
    }
