"""The recipes for other providers of metrics: what they ask for is what the platform has."""

from __future__ import annotations

import re

import yaml

from stratos.planning.external_metrics import METRIC_NAMES
from stratos_autoscaler.keda import parse_trigger
from tests.support.paths import ROOT

RECIPES = ROOT / "deploy" / "recipes"


def test_the_autoscaler_understands_kedas_trigger() -> None:
    objects = {found["kind"]: found for found in yaml.safe_load_all((RECIPES / "keda.yaml").read_text())}
    model = {"release": "RELEASE", "model": "base"}
    found = [parse_trigger(trigger["metadata"]) for trigger in objects["ScaledObject"]["spec"]["triggers"]]
    assert [(trigger.metric, dict(trigger.labels), trigger.target) for trigger in found] == [
        ("stratos_queue_depth", {**model, "role": "decode"}, 10.0),
        ("stratos_batch_lines_due", model, 2000.0),
    ]
    parameters = {entry["parameter"] for entry in objects["TriggerAuthentication"]["spec"]["secretTargetRef"]}
    assert parameters == {"caCert", "tlsClientCert", "tlsClientKey"}


def test_the_adapters_queries_are_of_series_that_exist_and_serve_what_the_hpas_ask() -> None:
    rules = yaml.safe_load((RECIPES / "prometheus-adapter.values.yaml").read_text())["rules"]["external"]
    documented = set(re.findall(r"`(stratos_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    for rule in rules:
        asked = set(re.findall(r"stratos_\w+", rule["seriesQuery"] + rule["metricsQuery"]))
        assert asked <= documented
        assert rule["name"]["as"] in METRIC_NAMES
        assert 'release=~".+/<<index .LabelValuesByName "release">>"' in rule["metricsQuery"], "of one release alone"
    head = (RECIPES / "prometheus-adapter.values.yaml").read_text().partition("rules:")[0]
    assert "batchPercent: 0, kvPercent: 0" in head, "the adapter has no other numbers"
    wanted = {"stratos_queue_depth", "stratos_open_streams", "stratos_batch_lines_due"}
    assert wanted == {rule["name"]["as"] for rule in rules}
