"""Point 10: `production.values.yaml`, with a Redis and a bucket that are no part of the release.

Every pool is scaled by its HPA. A node is drained under streams, what was in Redis is lost and put back from a backup.
"""

from __future__ import annotations

import re
import shlex
import time
from typing import Any

import pytest

from tests.support.kube.cluster import nodes
from tests.support.kube.cluster.client import ClientPod, client_pod
from tests.support.kube.cluster.commands import wait_until
from tests.support.kube.cluster.documented import run_documented
from tests.support.kube.cluster.images import provide_extra
from tests.support.kube.cluster.load import streaming_load
from tests.support.kube.cluster.own_stores import IMAGE, ask_redis, provide_own_stores
from tests.support.kube.cluster.release import METRICS_API, Release, namespace, wait_gone
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
NAMESPACE = "stratos-e2e-10"
VALUES = ("deploy/helm/production.values.yaml", "tests/e2e/point_10.values.yaml")
READY_S = 600.0
REQUEST = {"model": "base", "prompt": "def read_lines(", "max_tokens": 16, "temperature": 0}


@pytest.mark.usefixtures("images", "no_leftovers")
def test_point_10_values_for_production(cluster: ClusterSettings, report: ClusterReport) -> None:
    provide_extra(cluster, IMAGE, "tests/e2e/s3.Dockerfile")
    plan = nodes.NodePlan.of_cluster()
    environment = cluster.documented_environment(NAMESPACE, has_fixed_sizes=False)
    files = [part for path in VALUES for part in ("-f", path)]
    environment["HELM_ARGS"] = f"{shlex.join(files)} {environment['HELM_ARGS']}"
    with namespace(NAMESPACE) as kubectl:
        release = Release("stratos", kubectl)
        provide_own_stores(release, cluster, avoid=[plan.drained])
        start = time.monotonic()
        run_documented("install", environment)
        wait_until("all pods are ready", lambda: not release.unready(), READY_S)
        figures: dict[str, Any] = {"install to all ready, s": time.monotonic() - start, "pods": len(release.pods())}
        figures["HPAs with a metric"] = _wait_measured(release)
        assert not _kept_from_leaving(release), "every pool is larger than its floor"
        image = f"{cluster.repository}lora-registry:{cluster.tag}"
        with client_pod(kubectl, image, avoid=[plan.drained]) as client:
            figures |= _drained(release, client, plan.drained)
            figures |= _lost_and_put_back(release, client, environment)
        assert release.restarts() == {}
        run_documented("uninstall", environment)
        run_documented("remove data", environment)
        wait_gone(release)
        assert METRICS_API not in kubectl("get", "apiservices", "-o", "name")
    report.add("point 10: values for production", has_passed=True, **figures)


def _wait_measured(release: Release) -> int:
    """HPAs, of which each gets its metrics."""

    def is_active(item: dict[str, Any]) -> bool:
        conditions = {entry["type"]: entry["status"] for entry in item["status"].get("conditions", ())}
        return conditions.get("ScalingActive") == "True"

    wait_until("HPAs are measured", lambda: all(map(is_active, release.kubectl.items("hpa", release.selector))))
    return len(release.kubectl.items("hpa", release.selector))


def _kept_from_leaving(release: Release) -> list[str]:
    """Budgets that let no pod go."""
    found = release.kubectl.items("pdb", release.selector)
    assert len(found) >= 6, "one a service"
    return [item["metadata"]["name"] for item in found if not item["status"]["disruptionsAllowed"]]


def _drained(release: Release, client: ClientPod, node: str) -> dict[str, Any]:
    """Floors hold while a node is drained under streams."""
    there = nodes.bring(release, node, "gateway", "decode-worker")
    with streaming_load(client, release) as load:
        start = time.monotonic()
        try:
            nodes.drain(node)
            drained_s = time.monotonic() - start
            assert nodes.components_on(release, node) == []
            load.wait_streams()
        finally:
            nodes.uncordon(node)
        wait_until("all pods are ready", lambda: not release.unready(), READY_S)
        return {"pods there": ", ".join(there), "drained in, s": drained_s, **load.figures()}


def _lost_and_put_back(release: Release, client: ClientPod, environment: dict[str, str]) -> dict[str, Any]:
    """Keys work while Redis is empty; the backup makes it the store again, with as much in it as before."""
    key, url = release.api_key(), f"http://{release.name}-gateway/v1/completions"
    before = _backed_up(environment)
    assert ask_redis(release.kubectl, "FLUSHALL") == "OK"
    assert client.stream(url, key, REQUEST).status == 200, "known keys go on"
    start = time.monotonic()
    said = run_documented("put a backup back", environment)
    put_back_s = time.monotonic() - start
    wait_until("gateways follow the store", lambda: client.stream(url, key, REQUEST).status == 200)
    after = _backed_up(environment)
    assert after[0] == before[0], "as many records"
    assert after[1] >= before[1], "no line of the ledger is missing"
    assert "days of tenants compared" in said
    return {"records": before[0], "lines of ledger and audit log": before[1], "put back in, s": put_back_s}


def _backed_up(environment: dict[str, str]) -> tuple[int, int]:
    """Records, and lines of the ledger, of a backup that is made now."""
    found = re.search(r"(\d+) records, (\d+) lines", run_documented("back up now", environment))
    assert found
    return int(found[1]), int(found[2])
