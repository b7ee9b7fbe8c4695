"""Metrics that processes of a running platform expose, compared with the declared ones."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.observed.metric_declarations import declared_metrics
from tests.support.waiting import LIMIT_S
from tests.support.worlds.platform_process import PlatformProcess


def exposed(platform: PlatformProcess) -> Iterator[tuple[str, Metric]]:
    """Families of every process that has metrics, with its name."""
    for name, process in platform.processes().items():
        if process["metrics_address"]:
            text = httpx.get(f"http://{process['metrics_address']}/metrics", trust_env=False, timeout=LIMIT_S).text
            yield from ((name, family) for family in text_string_to_metric_families(text))


def undeclared(platform: PlatformProcess) -> set[str]:
    """Our own families that no declaration has, or that has another type or other labels."""
    declared = {metric.name: metric for metric in declared_metrics()}
    unknown = set()
    for name, family in exposed(platform):
        if not family.name.startswith("stratos_"):
            continue
        metric = declared.get(family.name + "_total" if family.type == "counter" else family.name)
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if metric is None or metric.type != family.type or (labels and labels != set(metric.labels)):
            unknown.add(f"{name}: {family.name} {family.type} {sorted(labels)}")
    return unknown
