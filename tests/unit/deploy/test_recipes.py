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
    (trigger,) = objects["ScaledObject"]["spec"]["triggers"]
    found = parse_trigger(trigger["metadata"])
    assert (found.metric, dict(found.labels), found.target) == (
        "stratos_queue_depth",
        {"release": "RELEASE", "model": "base", "role": "decode"},
        10.0,
    )
    parameters = {entry["parameter"] for entry in objects["TriggerAuthentication"]["spec"]["secretTargetRef"]}
    assert parameters == {"caCert", "tlsClientCert", "tlsClientKey"}


def test_the_adapters_queries_are_of_series_that_exist_and_serve_what_the_hpas_ask() -> None:
    rules = yaml.safe_load((RECIPES / "prometheus-adapter.values.yaml").read_text())["rules"]["external"]
    documented = set(re.findall(r"`(stratos_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    for rule in rules:
        asked = set(re.findall(r"stratos_\w+", rule["seriesQuery"] + rule["metricsQuery"]))
        assert asked <= documented
        assert rule["name"]["as"] in METRIC_NAMES
    templates = ROOT / "deploy" / "helm" / "stratosserve" / "templates"
    wanted = set(re.findall(r'"metric" "(stratos_\w+)"', (templates / "autoscaling.yaml").read_text()))
    assert wanted == {rule["name"]["as"] for rule in rules}
