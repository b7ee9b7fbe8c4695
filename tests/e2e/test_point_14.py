"""Point 14: the objects for a Ray cluster are taken by a control plane, with pods under the level "restricted".

No node is needed, and no controller of RayClusters: what KubeRay makes of them is not tried.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.support.kube.cluster.commands import Kubectl, wait_until
from tests.support.kube.cluster.release import namespace
from tests.support.kube.cluster.report import ClusterReport
from tests.support.paths import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
NAMESPACE, CRD = "stratos-e2e-14", "rayclusters.ray.io"
FILE = ROOT / "deploy" / "ray" / "batch.yaml"
FILLED = {"IMAGE": "example.org/stratos/worker:v1", "BUCKET": "results", "MODEL": "base"}


def test_point_14_objects_for_ray(report: ClusterReport) -> None:
    if not Kubectl()("get", "crd", CRD, "--ignore-not-found", "-o", "name"):
        pytest.skip(f"this cluster has no {CRD}")
    text = FILE.read_text(encoding="utf-8")
    for word, value in FILLED.items():
        text = text.replace(word, value)
    ray, _ = yaml.safe_load_all(text)
    with namespace(NAMESPACE) as kubectl:
        kubectl("create", "secret", "generic", "stratos-batch", "--from-literal=auth_token=00")
        said = kubectl("apply", "-f", "-", stdin=text).splitlines()
        [kept] = kubectl.items(CRD)
        assert kept["spec"] == ray["spec"]
        group = ray["spec"]["workerGroupSpecs"][0]
        for name, spec in (("head", ray["spec"]["headGroupSpec"]), (group["groupName"], group)):
            assert_admitted(kubectl, name, spec["template"])
        took = wait_until("the driver's pod is admitted", lambda: bool(kubectl.items("pods")), 60)
    report.add("point 14: objects for a Ray cluster", has_passed=True, objects=len(said), driver_admitted_s=took)


def assert_admitted(kubectl: Kubectl, name: str, template: dict[str, Any]) -> None:
    """A pod as KubeRay makes it of a template would be created: a level that it breaks refuses it."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **template}
    assert "created (server dry run)" in kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
