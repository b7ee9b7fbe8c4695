"""Additions of the chart for Prometheus and Grafana, by value.

Needs a renderer: `helm` on the path, or the package helm-python-sdk. Without one these tests are skipped, and say so.
"""

from __future__ import annotations

import json

import pytest

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from stratos.observe.dashboards.pages import DASHBOARDS
from stratos.observe.grafana import grafana_json
from stratos.observe.rule_files import rule_groups
from tests.support.kube.chart_objects import kinds, one, pods
from tests.support.kube.chart_rendering import checked, rendered

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)


PROMETHEUS = {"metricsClients": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]}


def test_metrics_are_found_by_annotations_or_by_the_operator() -> None:
    defaults = checked({})
    annotations = one(defaults, "Deployment", "demo-router")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "9100"
    assert not kinds(defaults, "PodMonitor")
    assert not [name for name in kinds(defaults, "ConfigMap") if "dashboard" in name]
    values = {
        "annotations": False,
        "podMonitor": {"enabled": True},
        "rules": {"enabled": True, "labels": {"prometheus": "main"}, "runbooks": "https://runbooks.example/"},
        "dashboards": {"enabled": True},
    }
    objects = checked({"monitoring": values, "networkPolicies": PROMETHEUS})
    assert "annotations" not in one(objects, "Deployment", "demo-router")["spec"]["template"]["metadata"]
    (endpoint,) = one(objects, "PodMonitor", "demo-pods")["spec"]["podMetricsEndpoints"]
    ports = [
        port["name"] for pod in pods(objects) for found in pod.spec["containers"] for port in found.get("ports", [])
    ]
    assert endpoint["port"] in ports
    assert {rule["targetLabel"] for rule in endpoint["relabelings"] if "targetLabel" in rule} == {
        "component",
        "release",
        "instance",
    }
    rules = one(objects, "PrometheusRule", "demo-rules")
    assert rules["metadata"]["labels"]["prometheus"] == "main"
    assert rules["spec"] == rule_groups("https://runbooks.example")
    for page in DASHBOARDS:
        data = one(objects, "ConfigMap", f"demo-dashboard-{page.uid.removeprefix('stratos-')}")["data"]
        assert json.loads(data[f"{page.uid}.json"]) == grafana_json(page)


def test_a_service_monitor_scrapes_the_same_pods_and_not_beside_the_other() -> None:
    scraped = {"monitoring": {"serviceMonitor": {"enabled": True, "labels": {"prometheus": "main"}}}}
    objects = checked({**scraped, "networkPolicies": PROMETHEUS})
    monitor, service = one(objects, "ServiceMonitor", "demo-metrics"), one(objects, "Service", "demo-metrics")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [
        name
        for name, found in kinds(objects, "Service").items()
        if "stratosserve.io/metrics" in found["metadata"]["labels"]
    ] == ["demo-metrics"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    assert {rule["targetLabel"] for rule in endpoint["relabelings"] if "targetLabel" in rule} == {
        "component",
        "release",
        "instance",
    }
    both = {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}
    with pytest.raises(RenderError, match="scrape every pod twice"):
        rendered({"monitoring": both, "networkPolicies": PROMETHEUS}, release="demo", namespace="ns")


@pytest.mark.parametrize("kind", ["podMonitor", "serviceMonitor"])
def test_an_operator_that_no_policy_lets_in_is_refused(kind: str) -> None:
    values = {"monitoring": {kind: {"enabled": True}}}
    with pytest.raises(RenderError, match=r"networkPolicies\.metricsClients"):
        rendered(values)
    assert rendered({**values, "networkPolicies": {"enabled": False}})


def test_alerts_may_be_left_out_and_have_other_thresholds() -> None:
    values = {
        "enabled": True,
        "alertLabels": {"team": "platform"},
        "exclude": ["StratosBatchLate"],
        "overrides": {"StratosKvPoolFull": {"expr": "stratos_kv_utilization_ratio > 0.99", "for": "30m"}},
    }
    groups = one(checked({"monitoring": {"rules": values}}), "PrometheusRule", "demo-rules")["spec"]["groups"]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    assert "StratosBatchLate" not in alerts
    assert {rule["labels"]["team"] for rule in alerts.values()} == {"platform"}
    full = alerts["StratosKvPoolFull"]
    assert (full["expr"], full["for"]) == ("stratos_kv_utilization_ratio > 0.99", "30m")
    assert full["labels"]["severity"] == "ticket", "what was not named stays"
    assert not [rule for group in groups for rule in group["rules"] if "record" in rule and "labels" in rule]
    with pytest.raises(RenderError, match="there is no alert StratosTypo"):
        rendered({"monitoring": {"rules": {"enabled": True, "overrides": {"StratosTypo": {"for": "1h"}}}}})


@pytest.mark.parametrize("service", ["gateway", "decodeWorker"])
def test_traces_that_no_policy_lets_out_are_refused(service: str) -> None:
    """The defect: a collector was named, and its edge stayed closed without a word."""
    values = {service: {"config": {"otlpEndpoint": "http://collector.monitoring:4317"}}}
    with pytest.raises(RenderError, match=rf"networkPolicies\.otlp: must name the peers of {service}\.config"):
        rendered(values)
    assert rendered({**values, "networkPolicies": {"enabled": False}})
    assert rendered({**values, "networkPolicies": {"otlp": PROMETHEUS["metricsClients"]}})
    assert rendered({service: {"config": {"otlpEndpoint": "http://localhost:4317"}}}), "a container beside it"
