"""Point 11: models as objects of a cluster, on its API server. No node is needed: what kubelets would say of pods is
written into their statuses.

The autoscaler is the real process, with the rights that the chart gives it and no others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.chart.rendering import render
from tests.support.kube.chart_objects import container, kinds, variables
from tests.support.kube.cluster.commands import CommandFailed, Kubectl, wait_until
from tests.support.kube.cluster.report import ClusterReport
from tests.support.paths import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
NAMESPACE, CRD = "stratos-e2e-11", "models.stratosserve.io"
NOWHERE = {"scheduling": {"nodeSelector": {"stratosserve.io/no-node-has-this": "true"}}}
VALUES: dict[str, Any] = {
    "mtls": {"enabled": False},
    "priorityClasses": {"create": False},
    "gateway": {"autoscaling": {"mode": "none"}},
    **{f"{role}Worker": {"autoscaling": {"mode": "none"}, "replicas": 1} for role in ("prefill", "decode")},
    "autoscaler": {"config": {"kubernetes": {"modelDrainS": 2}}},
    "modelResources": {
        "enabled": True,
        "templates": {"default": {"prefill": NOWHERE, "decode": NOWHERE | {"replicas": 2}}},
    },
}
SOURCE = {"objectStore": {"prefix": "models/chat", "digest": "a" * 64}}
OTHER = {"objectStore": {"prefix": "models/chat", "digest": "b" * 64}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no source": ({}, "source"),
    "two sources": ({"source": {**SOURCE, "claim": {"name": "x"}}}, "exactly one of"),
    "a folder above": ({"source": {"objectStore": {"prefix": "../x", "digest": "a" * 64}}}, "prefix"),
    "a variable": ({"source": SOURCE, "servedName": "$(REDIS_PASSWORD)"}, "servedName"),
    "sizes": ({"source": SOURCE, "decode": {"minReplicas": 3, "maxReplicas": 2}}, "minReplicas is above"),
    "no pool": ({"source": SOURCE, "prefill": {"replicas": 0}, "decode": {"replicas": 0}}, "both pools"),
    "a term": ({"source": SOURCE, "terms": {"maxInputTokens": 0}}, "maxInputTokens"),
    "an unknown field": ({"source": SOURCE, "hostNetwork": True}, "hostNetwork"),
}


def test_point_11_models_as_objects(report: ClusterReport, tmp_path: Path) -> None:
    objects = render(VALUES, release="stratos", namespace=NAMESPACE, kube_version="1.34.0")
    cluster, kubectl = Kubectl(), Kubectl(NAMESPACE)
    (crd,) = kinds(objects, "CustomResourceDefinition").values()
    cluster("apply", "--server-side", "-f", "-", stdin=json.dumps(crd))
    cluster("create", "namespace", NAMESPACE)
    try:
        cluster("wait", f"crd/{CRD}", "--for=condition=Established", "--timeout=30s")
        kubectl.apply(*[o for o in objects if o["kind"] in ("ServiceAccount", "ConfigMap", "Role", "RoleBinding")])
        for spec, said in REFUSED.values():
            with pytest.raises(CommandFailed, match=re.escape(said)):
                apply_model(kubectl, "chat", spec)
        with pytest.raises(CommandFailed, match="at most 32 characters"):
            apply_model(kubectl, "a" * 33, {"source": SOURCE})
        figures = {}
        with autoscaler(objects, tmp_path):
            figures["shown as loading after, s"] = comes_up(kubectl)
            is_scaled(kubectl)
            is_changed(kubectl)
            figures["gone after, s"] = goes(kubectl)
        cluster("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=60s", timeout_s=70)
    finally:
        for left in kubectl.items("models"):  # after a failure
            kubectl("patch", "model", left["metadata"]["name"], "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
        cluster("delete", "crd", CRD, "--ignore-not-found", "--wait=false")
        cluster("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
    report.add("point 11: models as objects", has_passed=True, **figures)


def comes_up(kubectl: Kubectl) -> float:
    """Loading with its reason, then ready; a name of values is refused."""
    apply_model(kubectl, "chat", {"source": SOURCE, "servedName": "team/chat"})
    apply_model(kubectl, "base", {"source": OTHER})
    took = wait_until("no node has room", lambda: status(kubectl)["reason"] == "NoRoom", 60)
    assert status(kubectl)["state"] == "Failed"
    assert status(kubectl, "base")["reason"] == "NameBelongsToValues"
    assert {d["metadata"]["name"] for d in kubectl.items("deployments")} == {
        "stratos-prefill-chat",
        "stratos-decode-chat",
    }
    make_ready(kubectl)
    wait_until("its pods are ready", lambda: status(kubectl)["pools"]["decode"]["shown"] == "2/2", 60)
    assert status(kubectl)["state"] != "Ready", "no gateway was told of it"
    end_jobs(kubectl)
    wait_until("it is ready", lambda: status(kubectl)["state"] == "Ready" and not is_loading(kubectl), 60)
    head, *rows = [re.split(r"\s{2,}", line) for line in kubectl("get", "models").splitlines()]
    shown = {row[0]: dict(zip(head, row, strict=False)) for row in rows}["chat"]
    assert head == ["NAME", "SERVED AS", "STATE", "REASON", "PREFILL", "DECODE", "REVISION", "AGE"]
    assert (shown["SERVED AS"], shown["STATE"], shown["DECODE"]) == ("team/chat", "Ready", "2/2")
    (deployment,) = [d for d in kubectl.items("deployments") if "decode" in d["metadata"]["name"]]
    assert deployment["metadata"]["ownerReferences"][0]["kind"] == "Model"
    fields = json.loads(kubectl("get", "deploy", "stratos-decode-chat", "--show-managed-fields", "-o", "json"))
    managers = {(m["manager"], m["operation"]) for m in fields["metadata"]["managedFields"]}
    assert ("stratosserve-models", "Apply") in managers
    return took


def is_scaled(kubectl: Kubectl) -> None:
    """A pool has the scale of its Deployment, which a changed source leaves as it is."""
    kubectl("scale", "deployment", "stratos-decode-chat", "--replicas=4")
    wait_until("it counts", lambda: status(kubectl)["pools"]["decode"]["replicas"] == 4, 60)
    apply_model(kubectl, "chat", {"source": OTHER, "servedName": "team/chat"})
    wait_until("it is another source", lambda: status(kubectl)["digest"] == "b" * 64, 60)
    wait_until("it is recorded again", lambda: len(kubectl.items("jobs")) == 1 and not has_ended(kubectl), 60)
    assert "b" * 64 not in kubectl("get", "deploy", "stratos-decode-chat", "-o", "json"), "before that no worker has it"
    end_jobs(kubectl)
    wait_until("it is recorded", lambda: status(kubectl)["record"]["count"] == 2, 60)
    wait_until("its pods get it", lambda: "b" * 64 in kubectl("get", "deploy", "stratos-decode-chat", "-o", "json"), 60)
    (deployment,) = [d for d in kubectl.items("deployments") if "decode" in d["metadata"]["name"]]
    assert deployment["spec"]["replicas"] == 4
    with pytest.raises(CommandFailed, match="servedName stays"):
        apply_model(kubectl, "chat", {"source": OTHER, "servedName": "other"})


def is_changed(kubectl: Kubectl) -> None:
    """A pool that the spec leaves out goes, with its budget."""
    apply_model(kubectl, "chat", {"source": OTHER, "servedName": "team/chat", "prefill": {"replicas": 0}})
    wait_until("one pool", lambda: len(kubectl.items("deployments")) == 1 == len(kubectl.items("pdb")), 60)


def goes(kubectl: Kubectl) -> float:
    """Off the list before its workers go; then nothing is left."""
    kubectl("delete", "model", "base", "--timeout=20s")
    kubectl("delete", "model", "chat", "--wait=false")
    wait_until("its records go", lambda: any("retire" in j["metadata"]["name"] for j in kubectl.items("jobs")), 60)
    assert status(kubectl)["state"] == "Leaving"
    assert len(kubectl.items("deployments")) == 1
    end_jobs(kubectl)
    took = wait_until("it is gone", lambda: not kubectl.items("models"), 60)
    wait_until("nothing is left", lambda: not any(map(kubectl.items, ("deployments", "jobs", "pdb", "pods"))), 60)
    return took


@contextmanager
def autoscaler(objects: list[dict[str, Any]], folder: Path) -> Iterator[None]:
    """The process, as its pod would run, behind a proxy that has the rights of its account."""
    account = f"system:serviceaccount:{NAMESPACE}:stratos-autoscaler"
    with ended(["kubectl", "proxy", "--port=0", f"--as={account}"], {}, folder / "proxy.log"):
        wait_until("the proxy listens", lambda: "Starting" in (folder / "proxy.log").read_text(), 20)
        (port,) = re.findall(r":(\d+)", (folder / "proxy.log").read_text())
        told = variables(container(objects, "stratos-autoscaler")) | {
            "STRATOS_AUTOSCALER_LISTEN": "127.0.0.1:0",
            "STRATOS_AUTOSCALER_ADVERTISE_HOST": "127.0.0.1",
            "STRATOS_AUTOSCALER_METRICS_LISTEN": "127.0.0.1:0",
            "STRATOS_AUTOSCALER_ROUTER_ADDRESSES": '["127.0.0.1:1"]',
            "STRATOS_AUTOSCALER_KUBERNETES__API_SERVER": f"http://127.0.0.1:{port}",
        }
        with ended([sys.executable, "-m", "stratos_autoscaler"], told, folder / "autoscaler.log"):
            try:
                yield
            except BaseException:
                print((folder / "autoscaler.log").read_text()[-6000:])
                raise


@contextmanager
def ended(argv: list[str], told: Mapping[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, **told}, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


def apply_model(kubectl: Kubectl, name: str, spec: dict[str, Any]) -> None:
    kubectl.apply({"apiVersion": "stratosserve.io/v1alpha1", "kind": "Model", "metadata": {"name": name}, "spec": spec})


def status(kubectl: Kubectl, name: str = "chat") -> dict[str, Any]:
    found = json.loads(kubectl("get", "model", name, "-o", "json"))
    return {"state": "", "reason": "", "digest": "", "record": {"count": 0}, **(found.get("status") or {})}


def is_loading(kubectl: Kubectl) -> bool:
    conditions = {c["type"]: c["status"] for c in status(kubectl)["conditions"]}
    return conditions["Loading"] == "True"


def make_ready(kubectl: Kubectl) -> None:
    """Every worker's pod starts, as a kubelet would say."""
    for pod in kubectl.items("pods", "app.kubernetes.io/component in (prefill-worker,decode-worker)"):
        true = [
            {"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady", "Initialized")
        ]
        say(kubectl, pod, {"phase": "Running", "conditions": true})


def end_jobs(kubectl: Kubectl) -> None:
    """Every job ends well, once its pod is there."""

    def has_pod_ended() -> bool:
        for pod in kubectl.items("pods", "app.kubernetes.io/component=tools"):
            say(kubectl, pod, {"phase": "Succeeded"})
        return has_ended(kubectl)

    wait_until("its job has ended", has_pod_ended, 60)


def has_ended(kubectl: Kubectl) -> bool:
    found = [{c["type"] for c in job["status"].get("conditions", ())} for job in kubectl.items("jobs")]
    return all("Complete" in kinds_ for kinds_ in found)


def say(kubectl: Kubectl, pod: dict[str, Any], said: dict[str, Any]) -> None:
    name = pod["metadata"]["name"]
    kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": said}))
