"""Point 4, what takes pods and certificates and leaves nodes alone, under constant streaming load.

No stream may fail, and every one has the tokens of the undisturbed run. Where gateways are lost, streams have records
and their clients come back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kube.cluster.commands import wait_until
from tests.support.kube.cluster.crashes import Crasher, crashing
from tests.support.kube.cluster.disturbed import Disturbed, disturbed_namespace, undisturbed
from tests.support.kube.cluster.documented import run_documented
from tests.support.kube.cluster.load import StreamingLoad
from tests.support.kube.cluster.release import Release
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
NAMESPACE = "stratos-e2e-4-pods"


@pytest.fixture(scope="module")
def installed(cluster: ClusterSettings, images: dict[str, float]) -> Iterator[Disturbed]:
    """One release for all of them."""
    with disturbed_namespace(cluster, NAMESPACE) as disturbed:
        run_documented("install", disturbed.environment)
        wait_until("all pods are ready", lambda: not disturbed.release.unready(), 300)
        yield disturbed


def test_point_4_two_decode_workers_taken_at_once(installed: Disturbed, report: ClusterReport) -> None:
    """One is enough for this load: N is 1. A kubelet gives even these 2 s before it kills them."""
    with undisturbed(installed, report, "two of three decode workers deleted by force at once") as (load, figures):
        victims = installed.pods_of("decode-worker")[:2]
        installed.release.kubectl("delete", "pod", *victims, "--force", "--grace-period=0", timeout_s=60)
        load.wait_streams()
        figures["all ready again after, s"] = wait_until(
            "their successors are ready", lambda: not installed.release.unready(), 300
        )


def test_point_4_rotated_certificates(installed: Disturbed, report: ClusterReport) -> None:
    release, restarts = installed.release, installed.release.restarts()
    with undisturbed(installed, report, "certificates renewed") as (load, figures):
        before = installed.expiries()
        assert "written: nothing" in run_documented("renew what is due", installed.environment)
        run_documented("renew everything", installed.environment)
        figures |= {"pods": len(before), "taken by all after, s": installed.wait_certificates_after(before)}
        load.wait_streams()
        # A new process is met by old ones, all with their new certificates.
        release.kubectl("delete", "pod", installed.pods_of("decode-worker")[0], "--wait=true", timeout_s=180)
        wait_until("its successor is ready", lambda: not release.unready(), 300)
        load.wait_streams()
        figures["renewed by the CronJob after, s"] = _renewed_by_schedule(installed)
    assert release.restarts().items() <= restarts.items()


def _renewed_by_schedule(installed: Disturbed) -> float:
    """Certificates of 30 days are due once they should live a year; the CronJob's next run renews them."""
    kubectl, name = installed.release.kubectl, f"cronjob/{installed.release.name}-certificates"
    found = json.loads(kubectl("get", name, "-o", "json"))
    command = found["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"]
    changed = ["--lifetime-days=365" if part.startswith("--lifetime-days=") else part for part in command]
    assert changed != command
    path = "/spec/jobTemplate/spec/template/spec/containers/0/command"
    before = installed.expiries()
    _patch(installed, name, ("/spec/schedule", "* * * * *"), (path, changed))

    def has_run_by_itself() -> bool:
        """Jobs that were made by hand set the time of the last success, but not that of the schedule."""
        status = json.loads(kubectl("get", name, "-o", "json"))["status"]
        scheduled = status.get("lastScheduleTime", "")
        return bool(scheduled) and not status.get("active") and status.get("lastSuccessfulTime", "") >= scheduled

    took = wait_until("the CronJob renews", has_run_by_itself, 240, pause_s=3)
    _patch(installed, name, ("/spec/schedule", found["spec"]["schedule"]), (path, command))
    return took + installed.wait_certificates_after(before)


def _patch(installed: Disturbed, name: str, *changes: tuple[str, object]) -> None:
    operations = [{"op": "replace", "path": path, "value": value} for path, value in changes]
    installed.release.kubectl("patch", name, "--type=json", "-p", json.dumps(operations))


def test_point_4_killed_gateway(installed: Disturbed, cluster: ClusterSettings, report: ClusterReport) -> None:
    """Its process ends as in a crash; streams with records go on at the other gateway, for clients that come back."""
    release, image = installed.release, f"{cluster.repository}lora-registry:{cluster.tag}"
    chosen = f"{release.selector},app.kubernetes.io/component=gateway"
    with (
        undisturbed(installed, report, "each gateway killed", comes_back=True) as (load, figures),
        crashing(image) as them,
    ):
        gateways = release.kubectl.items("pods", chosen)
        figures["killed"] = sum(_kill_under_streams(them, gateway, load, release) for gateway in gateways)


def _kill_under_streams(them: Crasher, gateway: dict[str, Any], load: StreamingLoad, release: Release) -> int:
    """Until a stream was cut; returns how often. A kill between two streams cuts none, three in a row are a fault."""
    before = load.num_resumed()
    for num in range(1, 4):
        them.kill(gateway)
        load.wait_streams()
        wait_until("it is started again", lambda: not release.unready(), 300)
        if load.num_resumed() > before:
            return num
    raise AssertionError(f"no client came back to a stream of {gateway['metadata']['name']}")
