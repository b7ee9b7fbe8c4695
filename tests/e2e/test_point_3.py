"""Point 3: only declared edges are open, and an account or a certificate allows what its service needs, no more."""

from __future__ import annotations

import base64
import json

import pytest

from tests.support.kube.cluster.client import ClientPod, client_pod
from tests.support.kube.cluster.commands import Kubectl, wait_until
from tests.support.kube.cluster.edges import SERVED, Edge, declared, open_edges, targets
from tests.support.kube.cluster.programs import DELETE, KV_HELLO, METRIC
from tests.support.kube.cluster.release import CHART, Release, namespace
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings
from tests.support.paths import FIXTURES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
NAMESPACE, FOREIGN = "stratos-e2e-3", "stratos-e2e-3-foreign"
PROMPT = (
    "class Shelf:\n    def __init__(self, books):\n        self.books = list(books)\n\n    def sorted_by(self):\n" * 2
)
"""Too long for a decode worker to compute by itself."""
RIGHTS = FIXTURES / "kubernetes" / "rights.json"


def test_point_3_edges_and_rights(cluster: ClusterSettings, images: dict[str, float], report: ClusterReport) -> None:
    client_image = f"{cluster.repository}lora-registry:{cluster.tag}"
    with namespace(NAMESPACE) as kubectl, namespace(FOREIGN) as foreign:
        release = Release("stratos", kubectl)
        flags = [
            "-f",
            "deploy/helm/one-node.values.yaml",
            "--set",
            "decodeWorker.replicas=2",
            "--set",
            "gateway.replicas=2",
        ]
        arguments = ["--set", f"image.tag={cluster.tag}", *cluster.helm_arguments(), "--wait", "--timeout", "15m"]
        release.helm("install", CHART, *flags, *arguments)
        wait_until("all pods are ready", lambda: not release.unready())
        reachable = targets(release)
        tried, opened = _between_components(release, reachable)
        with client_pod(foreign, client_image) as stranger:
            assert open_edges(stranger, "stranger", reachable) == {Edge("stranger", "gateway", "http")}
        assert _refused(release).startswith("PeerRefused"), _refused(release)
        address = _kv_listener(release, client_image)
        roles = ("prefill-worker", "gateway", "router", "lora-registry")
        kv = {role: _kv_answer(release, role, address) for role in roles}
        assert kv.pop("prefill-worker") == "waits for the hello", "a worker of this platform may go on"
        assert set(kv.values()) == {"ended"}, kv
        assert _rights(release) == json.loads(RIGHTS.read_text())
        release.helm("uninstall", "--wait", "--timeout", "5m")
    figures = {"pairs tried": tried + len(reachable), "pairs open, all declared": opened}
    report.add("point 3: edges and rights", has_passed=True, **figures)


def _between_components(release: Release, reachable: list[tuple[str, str, str]]) -> tuple[int, int]:
    """Every component tries every port of every other one."""
    sources = [name for name in SERVED if name != "redis"]
    wanted = declared(sources, conditions=frozenset({"ownRedis", "ownObjects"}))
    found: set[Edge] = set()
    for source in sources:
        pods = release.kubectl.items("pods", f"{release.selector},app.kubernetes.io/component={source}")
        own = {pod["status"].get("podIP") for pod in pods}
        others = [target for target in reachable if len(pods) > 1 or target[2] not in own]
        pod = next(pod for pod in pods if len(pods) == 1 or pod["status"]["podIP"] not in {t[2] for t in reachable})
        found |= open_edges(ClientPod(release.kubectl, pod["metadata"]["name"]), source, others)
    assert found == {edge for edge in wanted if edge.target in SERVED}
    return len(sources) * len(reachable), len(found)


def _refused(release: Release) -> str:
    """What the registry answers its own certificate: its role may not write."""
    chosen = f"{release.selector},app.kubernetes.io/component=lora-registry"
    (pod,) = release.kubectl.items("pods", chosen)
    domain = f"{release.name}.{release.kubectl.namespace}"
    return ClientPod(release.kubectl, pod["metadata"]["name"]).python(DELETE, domain)


def _kv_listener(release: Release, image: str) -> str:
    """Address of a decode worker that has received KV: the port opens with the first pair."""
    with client_pod(release.kubectl, image) as client:
        body = {"model": "base", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
        answer = client.stream(f"http://{release.name}-gateway/v1/completions", release.api_key(), body)
        assert answer.status == 200, answer.events
    pods = release.kubectl.items("pods", f"{release.selector},app.kubernetes.io/component=decode-worker")
    received = {
        pod["status"]["podIP"]: float(
            ClientPod(release.kubectl, pod["metadata"]["name"]).python(METRIC, "stratos_kv_transfer_bytes_total")
        )
        for pod in pods
    }
    assert max(received.values()) > 0, "no prompt went through the hand-off"
    return max(received, key=lambda address: received[address])


def _kv_answer(release: Release, role: str, address: str) -> str:
    """What a decode worker's KV port does with the certificate of a role.

    It is dialled from a prefill worker, which the NetworkPolicies let through.
    """
    secret = json.loads(release.kubectl("get", "secret", f"{release.name}-tls-{role}", "-o", "json"))
    files = {name: base64.b64decode(content).decode() for name, content in secret["data"].items()}
    chosen = f"{release.selector},app.kubernetes.io/component="
    prefill = release.kubectl.items("pods", f"{chosen}prefill-worker")[0]["metadata"]["name"]
    task = {"files": files, "address": address, "port": 9200, "patience_s": 3}
    return str(json.loads(ClientPod(release.kubectl, prefill).python(KV_HELLO, task)))


def _rights(release: Release) -> dict[str, list[str]]:
    """ServiceAccount -> what it can do beyond what every account of the cluster can."""
    common = set(_can(release.kubectl, "default"))
    accounts = [item["metadata"]["name"] for item in release.kubectl.items("serviceaccounts", release.selector)]
    return {name: sorted(set(_can(release.kubectl, name)) - common) for name in sorted(accounts)}


def _can(kubectl: Kubectl, account: str) -> list[str]:
    user = f"system:serviceaccount:{kubectl.namespace}:{account}"
    lines = kubectl("auth", "can-i", "--list", "--no-headers", f"--as={user}").splitlines()
    return [" ".join(line.split()) for line in lines]
