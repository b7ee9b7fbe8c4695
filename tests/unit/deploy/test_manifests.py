"""deploy/k8s as committed: valid for the oldest and the newest Kubernetes, and within the rules of every rendering."""

from __future__ import annotations

import functools

import pytest
import yaml

from tests.support.kube.chart_objects import Object, pods
from tests.support.kube.chart_policies import breaches
from tests.support.kube.kubernetes_schema import VERSIONS, problems
from tests.support.paths import ROOT

PRESETS = ("cpu", "gpu")


@functools.cache
def objects(preset: str) -> list[Object]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return list(yaml.load_all((ROOT / "deploy" / "k8s" / f"{preset}.yaml").read_text(), Loader=loader))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_and_none_is_deprecated(preset: str, version: str) -> None:
    assert len(objects(preset)) > 30
    assert [problem for found in objects(preset) for problem in problems(version, found)] == []


@pytest.mark.parametrize("preset", PRESETS)
def test_every_rule_is_kept(preset: str) -> None:
    assert breaches(objects(preset)) == []


def test_presets_are_complete() -> None:
    folder = ROOT / "deploy" / "k8s"
    assert sorted(path.name for path in folder.glob("*.yaml")) == sorted(
        f"{preset}{end}" for preset in PRESETS for end in (".yaml", ".values.yaml")
    )


def test_a_broken_object_is_seen() -> None:
    """The control: each kind of fault that the checks are for."""
    found = yaml.safe_load(yaml.safe_dump(objects("cpu")))
    (pod,) = [pod for pod in pods(found) if pod.component == "router"]
    pod.spec["containers"][0]["env"].append({"name": "STRATOS_ROUTER_QEUE__TTL_S", "value": "3"})
    pod.spec["containers"][0]["resources"].pop("limits")
    pod.spec["hostNetwork"], pod.spec["serviceAccount"], pod.spec["replicas"] = True, "router", 2
    pod.spec["terminationGracePeriodSeconds"] = 5
    seen = "\n".join([*breaches(found), *(p for o in found for p in problems("v1.37", o))])
    for text in (
        "QEUE__TTL_S",
        "no limits",
        "namespace of the node",
        "serviceAccount is deprecated",
        "'replicas'",
        "needs",
    ):
        assert text in seen
