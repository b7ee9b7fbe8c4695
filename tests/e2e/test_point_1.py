"""Point 1: three nodes, a strict namespace; install, restore a lost store, upgrade, roll back, a second release."""

from __future__ import annotations

import base64
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube.cluster.client import ClientPod, client_pod, kv_bytes
from tests.support.kube.cluster.commands import CommandFailed, wait_until
from tests.support.kube.cluster.documented import run_documented
from tests.support.kube.cluster.edges import CONNECT
from tests.support.kube.cluster.programs import DECLARED
from tests.support.kube.cluster.release import (
    CHART,
    METRICS_API,
    Release,
    metrics_api_is_available,
    namespace,
    wait_gone,
)
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
NAMESPACE = "stratos-e2e-1"
QUOTA = {
    "pods": "60", "requests.cpu": "8", "requests.memory": "24Gi", "limits.cpu": "64", "limits.memory": "96Gi",
    "persistentvolumeclaims": "8", "count/secrets": "60",
}  # fmt: skip
LONGEST_NAME = "second-release-with-the-longest-name-that-helm-allows"
PROMPT = "class Shelf:\n    def __init__(self, books):\n        self.books = list(books)\n\n    def sorted_by(self):\n"
"""Too long for a decode worker to compute by itself: its KV travels between pods."""
DECLARATION: dict[str, Any] = {
    "plans": {"gold": {"priority_class": 1, "prices": {"default": {"prompt": 10, "cached": 5, "output": 30}}}},
    "tenants": {"acme": {"plan": "gold"}},
}
REQUEST = {"model": "base", "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "seed": 1}


@pytest.mark.usefixtures("no_leftovers", "images")
def test_point_1_install_upgrade_uninstall(cluster: ClusterSettings, report: ClusterReport, tmp_path: Path) -> None:
    figures: dict[str, object] = {}
    environment = cluster.documented_environment(NAMESPACE, has_fixed_sizes=False)
    environment["BACKUP"] = str(tmp_path / "records.jsonl")
    environment["PORT"] = str(_free_port())  # another platform may answer at the documented one
    with namespace(NAMESPACE, quota=QUOTA) as kubectl:
        release = Release("stratos", kubectl)
        _refused_by_name(release)

        start = time.monotonic()
        run_documented("install", environment)
        wait_until("all pods are ready", lambda: not release.unready())
        figures["install_to_all_ready_s"] = time.monotonic() - start
        figures["pods"] = len(release.pods())
        figures["nodes_used"] = len({pod["spec"]["nodeName"] for pod in release.pods()})
        wait_until("the metrics API is available", lambda: metrics_api_is_available(release.kubectl))
        figures["HPAs with a metric"] = _wait_measured(release)
        with namespace(f"{NAMESPACE}-other"):
            """Its deletion asks every API of the cluster what there is."""
        assert release.restarts() == {}
        assert "Succeeded" in run_documented("test", environment)
        assert "[DONE]" in run_documented("first request", environment)

        figures["restored_records"] = _lose_and_restore(release, environment, cluster)
        figures["kv_bytes"] = kv_bytes(release)
        figures["upgrade_s"], figures["rollback_s"] = _upgrade_and_back(release, environment)
        assert "Succeeded" in run_documented("test", environment)

        second = Release(LONGEST_NAME, kubectl)
        _refused_second_api(second, cluster)
        figures["second_release_ready_s"] = _install_beside(second, cluster)
        assert "Succeeded" in second.helm("test", "--timeout", "5m")
        _declared_by_admins_alone(second, cluster)
        assert second.restarts() == {}
        second.helm("uninstall", "--wait", "--timeout", "5m")
        wait_gone(second)
        assert not release.unready(), "the first release is as it was"

        start = time.monotonic()
        run_documented("uninstall", environment)
        run_documented("remove data", environment)
        wait_gone(release)
        assert METRICS_API not in kubectl("get", "apiservices", "-o", "name")
        figures["uninstall_s"] = time.monotonic() - start
        start = time.monotonic()
    figures["namespace_deletion_s"] = time.monotonic() - start
    report.add("point 1: install, upgrade, uninstall", has_passed=True, **figures)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _refused_by_name(release: Release) -> None:
    """A Secret or file that is not there is no pod that waits for ever, but a refusal."""
    missing = '{"watermark": {"key": {"name": "nowhere", "key": "watermark"}}}'
    with pytest.raises(CommandFailed, match=r"gateway\.secretConfig\.watermark\.key: there is no Secret nowhere"):
        release.helm("install", CHART, "--set-json", f"gateway.secretConfig={missing}")
    with pytest.raises(CommandFailed, match=r"credentials\.existingSecret: there is no Secret nowhere"):
        release.helm("install", CHART, "--set", "credentials.existingSecret=nowhere")
    flags = ("--set", "gateway.admin.enabled=true", "--set", "declaration.configMap.name=nowhere")
    with pytest.raises(CommandFailed, match=r"declaration\.configMap: there is no ConfigMap nowhere"):
        release.helm("install", CHART, *flags)


def _wait_measured(release: Release) -> int:
    """Every HPA of the chart gets its metric."""

    def is_active(item: dict[str, Any]) -> bool:
        conditions = {entry["type"]: entry["status"] for entry in item["status"].get("conditions", ())}
        return conditions.get("ScalingActive") == "True"

    wait_until("HPAs are measured", lambda: all(map(is_active, release.kubectl.items("hpa", release.selector))))
    found = len(release.kubectl.items("hpa", release.selector))
    assert found == 3, "gateways, prefill, decode"
    return found


def _refused_second_api(second: Release, cluster: ClusterSettings) -> None:
    """A cluster has one provider of external metrics."""
    flags = [*cluster.small_arguments(), "--set", "autoscaling.metricsApi.owner=release"]
    with pytest.raises(CommandFailed, match=rf"this cluster has an APIService {METRICS_API} already, of {NAMESPACE}"):
        second.helm("install", CHART, *flags)


def _lose_and_restore(release: Release, environment: dict[str, str], cluster: ClusterSettings) -> int:
    """An emptied Redis takes no writes and loses no key; the backup makes it the store again. Returns its records."""
    run_documented("backup", environment)
    records = Path(environment["BACKUP"]).read_text().splitlines()
    assert len(records) >= 2
    kubectl, key = release.kubectl, release.api_key()
    redis = ("exec", f"deploy/{release.name}-redis", "--", "sh", "-c")
    kubectl(*redis, "redis-cli FLUSHALL")
    assert kubectl(*redis, "redis-cli DBSIZE").strip() == "0"
    with client_pod(kubectl, f"{cluster.repository}lora-registry:{cluster.tag}") as client:
        url = f"http://{release.name}-gateway/v1/completions"
        assert client.stream(url, key, REQUEST).status == 200, "known keys go on"
        run_documented("restore", environment)
        assert int(kubectl(*redis, "redis-cli DBSIZE")) > 0
        wait_until("gateways follow the restored store", lambda: client.stream(url, key, REQUEST).status == 200)
    return len(records)


def _upgrade_and_back(release: Release, environment: dict[str, str]) -> tuple[float, float]:
    """Every gateway pod is replaced by the upgrade, and again by the way back."""
    start = time.monotonic()
    changed = environment | {"HELM_ARGS": f"{environment['HELM_ARGS']} --set gateway.config.logLevel=DEBUG"}
    before = _names(release)
    run_documented("upgrade", changed)
    wait_until("the upgrade is ready", lambda: not release.unready())
    upgraded = time.monotonic()
    assert not before & _names(release)
    run_documented("rollback", environment)
    wait_until("the way back is ready", lambda: not release.unready())
    history = json.loads(release.helm("history", "-o", "json"))
    assert [entry["status"] for entry in history] == ["superseded", "superseded", "deployed"]
    return upgraded - start, time.monotonic() - upgraded


def _names(release: Release) -> set[str]:
    """Gateway pods, but for those that drain."""
    pods = [pod["metadata"] for pod in release.pods() if "deletionTimestamp" not in pod["metadata"]]
    return {pod["name"] for pod in pods if "-gateway-" in pod["name"]}


def _install_beside(second: Release, cluster: ClusterSettings) -> float:
    """With the admin API, and a declaration that a job applies."""
    assert len(second.name) == 53
    start = time.monotonic()
    declared = ["--set", "gateway.admin.enabled=true", "--set-json", f"declaration={json.dumps(DECLARATION)}"]
    flags = [*cluster.small_arguments(), *declared]
    second.helm("install", CHART, *flags, "--wait", "--timeout", "15m")
    wait_until("the second release is ready", lambda: not second.unready())
    wait_until("the declaration is applied", lambda: not _unfinished_jobs(second))  # helm waits for no job but hooks
    return time.monotonic() - start


def _unfinished_jobs(release: Release) -> list[str]:
    jobs = release.kubectl.items("jobs", release.selector)
    return [job["metadata"]["name"] for job in jobs if not job["status"].get("succeeded")]


def _declared_by_admins_alone(release: Release, cluster: ClusterSettings) -> None:
    """The job has applied the declaration, by the admin API's Service, which only the chart's tools reach."""
    (service,) = [
        item for item in release.kubectl.items("services", release.selector)
        if item["metadata"]["name"].endswith("-gateway-admin")
    ]  # fmt: skip
    gateway = _pod(release, "gateway")
    secrets = release.kubectl.items("secrets", release.selector)
    (key,) = [base64.b64decode(s["data"]["admin-key"]).decode() for s in secrets if "admin-key" in s.get("data", {})]
    found = json.loads(gateway.python(DECLARED, key))
    assert found["tenants"]["acme"]["plan"] == "gold", found
    assert found["plans"]["gold"]["prices"] == DECLARATION["plans"]["gold"]["prices"], found
    line = [[service["spec"]["clusterIP"], service["spec"]["ports"][0]["port"]]]
    with client_pod(release.kubectl, f"{cluster.repository}lora-registry:{cluster.tag}") as client:
        assert json.loads(client.python(CONNECT, line)) == [False], "no pod but the chart's own reaches the admin API"


def _pod(release: Release, component: str) -> ClientPod:
    chosen = f"{release.selector},app.kubernetes.io/component={component}"
    return ClientPod(release.kubectl, release.kubectl.items("pods", chosen)[0]["metadata"]["name"])
