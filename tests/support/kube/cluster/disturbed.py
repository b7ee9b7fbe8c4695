"""A release that disturbances come over: where it runs, and what its certificates and gateways say."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from tests.support.kube.cluster.client import ClientPod, client_pod
from tests.support.kube.cluster.commands import CommandFailed, wait_until
from tests.support.kube.cluster.edges import CONNECT
from tests.support.kube.cluster.load import NUM_AT_ONCE, StreamingLoad, streaming_load
from tests.support.kube.cluster.nodes import NodePlan, avoiding
from tests.support.kube.cluster.programs import METRIC
from tests.support.kube.cluster.release import Release, logs_of_failure, namespace
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings
from tests.support.paths import ROOT

VALUES = "tests/e2e/point_4.values.yaml"
EXPIRY = "stratos_tls_certificate_expiry_timestamp_seconds"
SERVICES = ("gateway", "router", "prefill-worker", "decode-worker", "lora-registry", "autoscaler")
GATEWAYS_LOST_AT_ONCE = 8
"""Streams, so that a gateway of two has some when it is lost."""
NEW_SECRETS_S = 240.0
"""A kubelet reads a changed Secret once a minute or two."""


@dataclass(frozen=True, slots=True)
class Disturbed:
    """A release, a pod that loads it, and what the documented commands need."""

    release: Release
    client: ClientPod
    nodes: NodePlan
    environment: dict[str, str]

    def pods_of(self, component: str) -> list[str]:
        """Names of those that are not leaving."""
        chosen = f"{self.release.selector},app.kubernetes.io/component={component}"
        pods = self.release.kubectl.items("pods", chosen)
        return sorted(pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"])

    def metric(self, pod: str, name: str) -> float:
        """Sum over the series of a name that a pod shows."""
        return float(ClientPod(self.release.kubectl, pod).python(METRIC, name))

    def expiries(self) -> dict[str, float]:
        """Pod of a service -> end of validity of the certificate that it uses."""
        return {pod: self.metric(pod, EXPIRY) for service in SERVICES for pod in self.pods_of(service)}

    def wait_certificates_after(self, before: dict[str, float]) -> float:
        """Every pod uses a newer one; returns the seconds it took."""
        left = dict(before)

        def all_taken() -> bool:
            for pod in list(left):
                if self.metric(pod, EXPIRY) > left[pod]:
                    del left[pod]
            return not left

        try:
            return wait_until("all pods take the new certificates", all_taken, NEW_SECRETS_S, pause_s=5)
        except AssertionError:
            raise CommandFailed(f"pods that went on with the old certificate: {sorted(left)}") from None

    def recoveries(self) -> float:
        """Attempts after the first one, over the gateways that run."""
        return sum(self.metric(pod, "stratos_recoveries_total") for pod in self.pods_of("gateway"))

    def reaches(self, node: str) -> bool:
        """Whether a gateway can connect to a decode worker on a node."""
        chosen = f"{self.release.selector},app.kubernetes.io/component=decode-worker"
        workers = self.release.kubectl.items("pods", chosen)
        address = next(pod["status"]["podIP"] for pod in workers if pod["spec"]["nodeName"] == node)
        gateway = ClientPod(self.release.kubectl, self.pods_of("gateway")[0])
        return bool(json.loads(gateway.python(CONNECT, [[address, 9000]]))[0])


@contextmanager
def disturbed_namespace(
    cluster: ClusterSettings, name: str, more: Mapping[str, object] = MappingProxyType({})
) -> Iterator[Disturbed]:
    """A namespace with the load's pod. The release is not installed yet.

    No gateway goes to the lost node, and no store to the drained one, which is killed while streams have records.

    Args:
        cluster: to use.
        name: of the namespace.
        more: values of the chart.
    """
    nodes = NodePlan.of_cluster()
    placed = {"gateway": nodes.lost, "redis": nodes.drained, "objectStore": nodes.drained}
    values = {**{name: {"scheduling": {"affinity": avoiding(node)}} for name, node in placed.items()}, **more}
    path = ROOT / "build" / "e2e" / f"{name}.values.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))
    arguments = ["-f", VALUES, *cluster.helm_arguments(), "-f", str(path)]
    environment = cluster.documented_environment(name) | {"HELM_ARGS": shlex.join(arguments)}
    image = f"{cluster.repository}lora-registry:{cluster.tag}"
    with namespace(name) as kubectl, client_pod(kubectl, image, avoid=(nodes.drained, nodes.lost)) as client:
        yield Disturbed(Release("stratos", kubectl), client, nodes, environment)


@contextmanager
def undisturbed(
    installed: Disturbed, report: ClusterReport, name: str, *, comes_back: bool = False
) -> Iterator[tuple[StreamingLoad, dict[str, object]]]:
    """Load while something happens; its figures go into the report.

    Where clients come back, gateways are lost, and with them their counts of attempts.
    """
    figures: dict[str, object] = {}
    num_at_once = GATEWAYS_LOST_AT_ONCE if comes_back else NUM_AT_ONCE
    loading = streaming_load(installed.client, installed.release, num_at_once=num_at_once, comes_back=comes_back)
    with logs_of_failure(installed.release.kubectl), loading as load:
        before = 0.0 if comes_back else installed.recoveries()
        yield load, figures
        if not comes_back:
            figures["attempts after the first one"] = installed.recoveries() - before
        load.wait_streams()
        figures |= load.figures()
    report.add(f"point 4: {name}", has_passed=True, **figures)
