"""Point 7: the API server is gone for a minute under load; serving goes on, and nothing scales on what is not known."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.kube.cluster.client import client_pod
from tests.support.kube.cluster.commands import run, wait_until
from tests.support.kube.cluster.load import streaming_load
from tests.support.kube.cluster.release import CHART, Release, namespace
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
NAMESPACE = "stratos-e2e-7"
GONE_S = 60.0
SCALED = (
    "autoscaling.metricsApi.owner=release,decodeWorker.autoscaling.mode=planner,decodeWorker.autoscaling.minReplicas=2,"
    "decodeWorker.autoscaling.maxReplicas=3"
)


@pytest.mark.usefixtures("no_leftovers", "images")
def test_point_7_no_api_server(cluster: ClusterSettings, report: ClusterReport) -> None:
    if not cluster.api:
        pytest.skip("E2E_API names no command that stops and starts the API server")
    with namespace(NAMESPACE) as kubectl:
        release = Release("stratos", kubectl)
        flags = cluster.small_arguments()
        release.helm("install", CHART, *flags, "--set", SCALED, "--wait", "--timeout", "10m")
        wait_until("the planner has its minimum", lambda: _size(release) == 2 and not release.unready(), 300)
        image = f"{cluster.repository}lora-registry:{cluster.tag}"
        with client_pod(kubectl, image) as client, streaming_load(client, release) as load:
            before = release.restarts()
            run([*cluster.api, "stop"])
            time.sleep(GONE_S)
            run([*cluster.api, "start"])
            wait_until("the API server is back", lambda: _size(release) == 2, 120)
            load.wait_streams()
            figures = load.figures()
        assert release.restarts() == before
        assert _size(release) == 2
        release.helm("uninstall", "--wait", "--timeout", "5m")
    report.add("point 7: without the API server", has_passed=True, **figures)


def _size(release: Release) -> int:
    found = json.loads(release.kubectl("get", "deployment", f"{release.name}-decode-base", "-o", "json"))
    return int(found["spec"].get("replicas", 1))
