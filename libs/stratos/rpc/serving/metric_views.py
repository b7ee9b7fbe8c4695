"""The same measurements under the names that other platforms' dashboards ask for, made from our own at a scrape.

One table says which native family each view is made from.  Labels that a view does not have are summed away, and a
histogram keeps those bounds that it shares with the view; so a view never counts anything by itself.  ``model_name``,
and ``model`` of a worker, come from the process' info series (``stratos_worker_info``) where the family lacks it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

ViewName = Literal["vllm", "llm"]
_INFO = "stratos_worker_info"
_STATUS = {"finished": "success", "failed": "error", "refused": "rejected", "left": "cancelled"}
_FINISH = {"finished": "stop", "failed": "error", "left": "abort"}
LLM_TTFT_BUCKETS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LLM_DURATION_BUCKETS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One family under another name.

    A counter's names are without ``_total``, as the client library wants them.
    """

    view: ViewName
    name: str
    source: str
    text: str
    labels: Mapping[str, str] = field(default_factory=dict)
    """Its labels, each with the label of the source that it is taken from."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Names for label values; of a family with such names other values are left out."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Only series with these labels."""
    scale: float = 1.0
    buckets: tuple[float, ...] = ()
    """Bounds in the view's unit that are kept; none keeps all."""


_MODEL = {"model": "model"}
_VLLM = {"model_name": "model"}
VIEWS: tuple[View, ...] = (
    View(view="llm", name="llm_requests", source="stratos_request_outcomes", text="Ended requests.",
         labels={"model": "model", "status": "outcome"}, values=_STATUS),
    View(view="llm", name="llm_tokens_generated", source="stratos_output_tokens", text="Output tokens.", labels=_MODEL),
    View(view="llm", name="llm_tokens_per_second", source="stratos_decode_tokens_per_second",
         text="Tokens that a worker samples a second.", labels=_MODEL),
    View(view="llm", name="llm_ttft_seconds", source="stratos_request_ttft_seconds", text="Time to the first token.",
         labels=_MODEL, buckets=LLM_TTFT_BUCKETS_S),
    View(view="llm", name="llm_inter_token_latency_ms", source="stratos_request_itl_seconds",
         text="Milliseconds between tokens of a choice.", labels=_MODEL, scale=1000.0),
    View(view="llm", name="llm_request_duration_seconds", source="stratos_request_duration_seconds",
         text="Duration of a request.", labels=_MODEL, buckets=LLM_DURATION_BUCKETS_S),
    View(view="llm", name="llm_request_latency_seconds", source="stratos_request_duration_seconds",
         text="Duration of a request.", labels=_MODEL, buckets=LLM_DURATION_BUCKETS_S),
    View(view="llm", name="llm_queue_length", source="stratos_router_queue_depth", text="Requests that wait.",
         labels={"model_digest": "model_digest"}),
    View(view="llm", name="llm_queue_depth", source="stratos_router_queue_depth", text="Requests that wait.",
         labels={"model_digest": "model_digest"}),
    View(view="llm", name="llm_active_requests", source="stratos_requests_open", text="Requests that are open."),
    View(view="llm", name="llm_kv_cache_utilization", source="stratos_kv_utilization_ratio",
         text="Part of the KV pool that requests hold.", labels=_MODEL),
    View(view="llm", name="llm_gpu_memory_bytes", source="stratos_gpu_memory_bytes", text="Used memory of the GPU.",
         labels={"gpu_id": "gpu"}, where={"state": "used"}),
    View(view="llm", name="gpu_memory_used_bytes", source="stratos_gpu_memory_bytes", text="Used memory of the GPU.",
         labels={"gpu_id": "gpu"}, where={"state": "used"}),
    View(view="llm", name="gpu_utilization_percent", source="stratos_gpu_utilization_ratio", text="Use of the GPU.",
         labels={"gpu_id": "gpu"}, scale=100.0),
    View(view="vllm", name="vllm:num_requests_running", source="stratos_requests_running",
         text="Sequences in the batch.", labels=_VLLM),
    View(view="vllm", name="vllm:num_requests_waiting", source="stratos_requests_waiting",
         text="Sequences that wait at the worker.", labels=_VLLM),
    View(view="vllm", name="vllm:kv_cache_usage_perc", source="stratos_kv_utilization_ratio",
         text="Part of the KV pool that requests hold, 0 to 1.", labels=_VLLM),
    View(view="vllm", name="vllm:num_preemptions", source="stratos_preemptions", text="Preemptions.", labels=_VLLM),
    View(view="vllm", name="vllm:prompt_tokens", source="stratos_prompt_tokens", text="Prompt tokens.", labels=_VLLM),
    View(view="vllm", name="vllm:generation_tokens", source="stratos_output_tokens", text="Output tokens.",
         labels=_VLLM),
    View(view="vllm", name="vllm:time_to_first_token_seconds", source="stratos_request_ttft_seconds",
         text="Time to the first token.", labels=_VLLM),
    View(view="vllm", name="vllm:inter_token_latency_seconds", source="stratos_request_itl_seconds",
         text="Time between tokens of a choice.", labels=_VLLM),
    View(view="vllm", name="vllm:e2e_request_latency_seconds", source="stratos_request_duration_seconds",
         text="Duration of a request.", labels=_VLLM),
    View(view="vllm", name="vllm:request_prompt_tokens", source="stratos_request_prompt_tokens",
         text="Prompt tokens of a request.", labels=_VLLM),
    View(view="vllm", name="vllm:request_generation_tokens", source="stratos_request_output_tokens",
         text="Output tokens of a request.", labels=_VLLM),
    View(view="vllm", name="vllm:request_success", source="stratos_request_outcomes", text="Ended requests.",
         labels={"model_name": "model", "finished_reason": "outcome"}, values=_FINISH),
)  # fmt: skip


class ViewCollector(Collector):
    """Makes views of what a registry collects.

    Args:
        registry: with the native families.
        views: which names.
    """

    def __init__(self, registry: CollectorRegistry, views: Iterable[ViewName]) -> None:
        self._registry = registry
        self._views = tuple(view for view in VIEWS if view.view in set(views))

    def collect(self) -> Iterator[Metric]:
        """Every view whose family this process has and that has a series."""
        if not self._views:
            return
        families = {family.name: family for family in self._registry.collect()}
        info = families[_INFO].samples[0].labels if _INFO in families and families[_INFO].samples else {}
        for view in self._views:
            if (source := families.get(view.source)) is not None and source.samples:
                yield _made(view, source, info)


def _made(view: View, source: Metric, info: Mapping[str, str]) -> Metric:
    names = tuple(view.labels)
    sums: dict[tuple[str, ...], dict[tuple[str, float], float]] = defaultdict(lambda: defaultdict(float))
    for sample in source.samples:
        labels = _labels(view, sample, info)
        part = sample.name.removeprefix(view.source)
        if labels is not None and part != "_created":
            sums[labels][part, float(sample.labels.get("le", "nan")) if part == "_bucket" else 0.0] += sample.value
    if source.type == "histogram":
        histogram = HistogramMetricFamily(view.name, view.text, labels=names)
        for labels, parts in sums.items():
            histogram.add_metric(labels, _buckets(view, parts), parts["_sum", 0.0] * view.scale)
        return histogram
    kind = CounterMetricFamily if source.type == "counter" else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(view.name, view.text, labels=names)
    for labels, parts in sums.items():
        family.add_metric(labels, sum(parts.values()) * view.scale)
    return family


def _labels(view: View, sample: Sample, info: Mapping[str, str]) -> tuple[str, ...] | None:
    """Values of the view's labels; ``None`` for a series that is not part of it."""
    if any(sample.labels.get(name) != value for name, value in view.where.items()):
        return None
    values = [sample.labels.get(old, info.get(old, "")) for old in view.labels.values()]
    if view.values:
        if values[-1] not in view.values:
            return None
        values[-1] = view.values[values[-1]]
    return tuple(values)


def _buckets(view: View, parts: Mapping[tuple[str, float], float]) -> list[tuple[str, float]]:
    found = []
    for (part, bound), count in sorted(parts.items(), key=lambda item: item[0][1]):
        scaled = bound * view.scale
        if part == "_bucket" and (not view.buckets or scaled in view.buckets or scaled == math.inf):
            found.append(("+Inf" if scaled == math.inf else str(scaled), count))
    return found
