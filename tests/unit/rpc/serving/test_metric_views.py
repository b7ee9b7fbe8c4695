"""Views hold the same numbers as the native series, under the names and with the buckets of their table."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from stratos.rpc.serving.metric_views import LLM_DURATION_BUCKETS_S, LLM_TTFT_BUCKETS_S, VIEWS, ViewCollector
from stratos_gateway.metrics import GatewayMetrics
from tests.support.observed.metric_declarations import declared_metrics


def views_of(registry: CollectorRegistry, *views: str) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(ViewCollector(registry, views))
    return made


def test_counters_and_histograms_are_summed_over_what_a_view_lacks() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, "base")
    for tenant, priority_class in (("one", 1), ("two", 0)):
        meters = metrics.running(tenant, priority_class)
        meters.output_tokens.inc(4)
        for seconds in (0.05, 0.15, 0.3):
            meters.ttft.observe(seconds)
        meters.itl.observe(0.02)
    metrics.outcomes.labels("base", "1", "finished").inc(3)
    metrics.outcomes.labels("base", "0", "finished").inc()
    made = views_of(registry, "llm", "vllm")
    assert made.get_sample_value("llm_tokens_generated_total", {"model": "base"}) == 8
    assert made.get_sample_value("vllm:generation_tokens_total", {"model_name": "base"}) == 8
    assert made.get_sample_value("llm_requests_total", {"model": "base", "status": "success"}) == 4
    by_bound = [made.get_sample_value("llm_ttft_seconds_bucket", {"model": "base", "le": b}) for b in ("0.1", "0.2")]
    assert by_bound == [2, 4]
    assert made.get_sample_value("llm_ttft_seconds_count", {"model": "base"}) == 6
    assert made.get_sample_value("llm_inter_token_latency_ms_sum", {"model": "base"}) == 40
    assert made.get_sample_value("llm_inter_token_latency_ms_bucket", {"model": "base", "le": "20.0"}) == 2


def test_the_bounds_of_a_view_are_among_the_native_ones() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, "base")
    metrics.running("one", 1).ttft.observe(1)
    families = {family.name: family for family in views_of(registry, "llm").collect()}
    for name, bounds in (("ttft_seconds", LLM_TTFT_BUCKETS_S), ("request_duration_seconds", LLM_DURATION_BUCKETS_S)):
        found = [sample.labels["le"] for sample in families[f"llm_{name}"].samples if "le" in sample.labels]
        assert found == [*map(str, bounds), "+Inf"]


def test_a_worker_takes_the_model_from_its_info() -> None:
    registry = CollectorRegistry()
    Gauge("stratos_worker_info", "x", ("model",), registry=registry).labels("base").set(1)
    Gauge("stratos_kv_utilization_ratio", "x", ("device",), registry=registry).labels("cuda").set(0.4)
    Gauge("stratos_gpu_utilization_ratio", "x", ("gpu",), registry=registry).labels("3").set(0.5)
    made = views_of(registry, "llm")
    assert made.get_sample_value("llm_kv_cache_utilization", {"model": "base"}) == 0.4
    assert made.get_sample_value("gpu_utilization_percent", {"gpu_id": "3"}) == 50


def test_nothing_is_shown_unless_asked_for() -> None:
    registry = CollectorRegistry()
    GatewayMetrics(registry, "base")
    assert list(views_of(registry).collect()) == []


def test_every_view_is_made_of_something_that_there_is() -> None:
    names = {metric.name.removesuffix("_total") for metric in declared_metrics()}
    assert {view.source for view in VIEWS} <= names
