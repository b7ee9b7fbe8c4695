"""Point 4: nodes drained, lost and cut off, under constant streaming load.

No stream may fail, and every one has the tokens of the undisturbed run; only streams that are open when the time of
their gateway's drain is over may end with its error event, and are counted. Where gateways are lost, streams have
records and their clients come back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.kube.cluster import nodes
from tests.support.kube.cluster.commands import wait_until
from tests.support.kube.cluster.disturbed import Disturbed, disturbed_namespace, undisturbed
from tests.support.kube.cluster.documented import run_documented
from tests.support.kube.cluster.load import StreamingLoad
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
NAMESPACE = "stratos-e2e-4"
CUT_S = 15.0


@pytest.fixture(scope="module")
def installed(cluster: ClusterSettings, images: dict[str, float]) -> Iterator[Disturbed]:
    """One release for all of them."""
    with disturbed_namespace(cluster, NAMESPACE) as disturbed:
        run_documented("install", disturbed.environment)
        wait_until("all pods are ready", lambda: not disturbed.release.unready(), 300)
        yield disturbed


@pytest.fixture
def losing(cluster: ClusterSettings) -> None:
    if not cluster.node:
        pytest.skip("E2E_NODE names no command that takes nodes away")


def test_point_4_drained_node(installed: Disturbed, report: ClusterReport) -> None:
    node, release = installed.nodes.drained, installed.release
    there = nodes.bring(release, node, "gateway", "decode-worker")
    with undisturbed(installed, report, "a drained node") as (load, figures):
        start = time.monotonic()
        try:
            nodes.drain(node)
            wait_until("the others are ready", lambda: not release.unready(), 300)
            figures |= {"pods there": ", ".join(there), "drained in, s": time.monotonic() - start}
            assert nodes.components_on(release, node) == []
            load.wait_streams()
        finally:
            nodes.uncordon(node)


@pytest.mark.usefixtures("losing")
def test_point_4_killed_node(installed: Disturbed, cluster: ClusterSettings, report: ClusterReport) -> None:
    node, release = installed.nodes.lost, installed.release
    there = nodes.bring(release, node, "decode-worker")
    assert "gateway" not in there
    with undisturbed(installed, report, "a killed node") as (load, figures):
        figures |= {
            "pods there": ", ".join(there),
            "seen by the API server after, s": _kill_and_revive(node, cluster, load),
        }
        nodes.wait_ready(release, node)
        load.wait_streams()


@pytest.mark.usefixtures("losing")
def test_point_4_node_cut_for_15_s(installed: Disturbed, cluster: ClusterSettings, report: ClusterReport) -> None:
    node, release = installed.nodes.lost, installed.release
    there = nodes.bring(release, node, "decode-worker")
    assert "gateway" not in there
    assert installed.reaches(node)
    with undisturbed(installed, report, "a node cut for 15 s") as (load, figures):
        nodes.disturb(cluster, "cut", node)
        try:
            cut = time.monotonic()
            figures |= {"pods there": ", ".join(there)}
            assert not installed.reaches(node)
            time.sleep(max(0.0, CUT_S - (time.monotonic() - cut)))
        finally:
            nodes.disturb(cluster, "join", node)
            figures["cut for, s"] = time.monotonic() - cut
        nodes.wait_ready(release, node)
        assert installed.reaches(node)
        load.wait_streams()
    assert release.restarts().keys() <= _restarted_before(installed), "a cut restarts nothing"


def _restarted_before(installed: Disturbed) -> set[str]:
    """Pods of the node that a test before may have killed."""
    return {
        pod["metadata"]["name"] for pod in installed.release.pods()
        if pod["spec"].get("nodeName") == installed.nodes.lost
    }  # fmt: skip


@pytest.mark.usefixtures("losing")
def test_point_4_killed_node_with_a_gateway(
    installed: Disturbed, cluster: ClusterSettings, report: ClusterReport
) -> None:
    node, release = installed.nodes.drained, installed.release
    there = nodes.bring(release, node, "gateway", "decode-worker")
    with undisturbed(installed, report, "a killed node with a gateway", comes_back=True) as (load, figures):
        figures["pods there"] = ", ".join(there)
        before = load.num_resumed()
        for num in range(1, 4):  # a kill between two streams cuts none, three in a row are a fault
            seen_s = _kill_and_revive(node, cluster, load)
            nodes.wait_ready(release, node)
            load.wait_streams()
            figures |= {"killed": num, "seen by the API server after, s": seen_s}
            if load.num_resumed() > before:
                return
        pytest.fail("it had no stream")


def _kill_and_revive(node: str, cluster: ClusterSettings, load: StreamingLoad) -> float:
    """Seconds until the API server had seen that it was lost; streams go on without it before it comes back."""
    start = time.monotonic()
    nodes.disturb(cluster, "kill", node)
    try:
        wait_until("the node is lost", lambda: not nodes.is_ready(node), 120)
        seen_s = time.monotonic() - start
        load.wait_streams()
    finally:
        nodes.disturb(cluster, "revive", node)
    return seen_s
