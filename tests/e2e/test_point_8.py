"""Point 8: GitOps. What Argo CD and Flux do with a manifest, played with `deploy/k8s/cpu.yaml` itself, without Helm.

Applied by the server side, applied once more without any effect, rendered anew with other values, applied and pruned of
what the new manifest has no more. Nothing that jobs made in the cluster is touched, and a stream comes each time.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from scripts.chart.render_manifests import FOLDER, NAMESPACE, RELEASE
from scripts.chart.rendering import render
from tests.support.kube.cluster.client import client_pod
from tests.support.kube.cluster.commands import Kubectl, run, wait_until
from tests.support.kube.cluster.release import Release, namespace
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
Object = dict[str, Any]
Name = tuple[str, str]
CHANGES: Object = {"router": {"replicas": 1}, "tools": {"resources": {"limits": {"cpu": "1", "memory": "640Mi"}}}}
"""A Deployment that is another, and the same jobs with another spec: they are other Jobs."""


def test_point_8_a_manifest_is_applied_again_changed_and_pruned(
    cluster: ClusterSettings, images: dict[str, float], report: ClusterReport
) -> None:
    committed = list(yaml.safe_load_all((FOLDER / "cpu.yaml").read_text()))
    objects = [_with_images(found, cluster) for found in committed if found]
    with namespace(NAMESPACE) as kubectl:
        release = Release(RELEASE, kubectl)
        try:
            apply(objects)
            ready_s = wait_until("all pods are ready", lambda: has_settled(release, objects), 900)
            stream(release, cluster)
            before, made = states(release), made_by_jobs(release)
            apply(objects)
            assert states(release) == before, "applying the same manifest changes nothing"

            later = [_with_images(found, cluster) for found in changed()]
            gone = names(objects) - names(later)
            assert {kind for kind, _ in gone} == {"Job"}, gone
            apply(later)
            wait_until("the jobs of before are pruned", lambda: not gone & names(kubectl.items("jobs")))
            upgraded_s = wait_until("all pods are ready", lambda: has_settled(release, later), 600)
            assert made_by_jobs(release) == made, "jobs made no secret again"
            stream(release, cluster)
            objects = later
        finally:
            delete(objects)
    report.add(
        "point 8: GitOps with deploy/k8s/cpu.yaml",
        has_passed=True,
        ready_s=ready_s,
        upgraded_s=upgraded_s,
        num_objects=len(objects),
    )


def changed() -> list[Object]:
    """The next version of the manifest, as something that renders for itself has it."""
    values = yaml.safe_load((FOLDER / "cpu.values.yaml").read_text())
    found = render({**values, **CHANGES}, release=RELEASE, namespace=NAMESPACE)
    return [o for o in found if "helm.sh/hook" not in (o["metadata"].get("annotations") or {})]


def apply(objects: list[Object]) -> None:
    """As docs/gitops.md has it: what was applied before and is not among them is pruned."""
    text = "---\n".join(json.dumps(found) + "\n" for found in objects)
    command = ["env", "KUBECTL_APPLYSET=true", "kubectl", "--namespace", NAMESPACE, "apply", "--server-side"]
    run([*command, "--prune", f"--applyset={RELEASE}", "-f", "-"], stdin=text)


def delete(objects: list[Object]) -> None:
    """Everything of the manifest, of the cluster's own kinds too."""
    text = "---\n".join(json.dumps(found) + "\n" for found in objects)
    Kubectl()("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=text, timeout_s=300)


def names(objects: list[Object]) -> set[Name]:
    return {(found["kind"], found["metadata"]["name"]) for found in objects}


def has_settled(release: Release, objects: list[Object]) -> bool:
    """Every Deployment has its pods, all serve, and every Job has ended well."""
    deployments = release.kubectl.items("deployments", release.selector)
    done = {job["metadata"]["name"] for job in release.kubectl.items("jobs") if job.get("status", {}).get("succeeded")}
    return (
        all(_is_rolled_out(found) for found in deployments)
        and {name for kind, name in names(objects) if kind == "Job"} <= done
        and not release.unready()
    )


def _is_rolled_out(deployment: Object) -> bool:
    status, wanted = deployment.get("status", {}), deployment["spec"]["replicas"]
    is_seen = status.get("observedGeneration") == deployment["metadata"]["generation"]
    return bool(is_seen) and status.get("updatedReplicas", 0) == status.get("readyReplicas", 0) == wanted


def states(release: Release) -> dict[str, str]:
    """Generations of what has one, and the pods: what another object would change."""
    found = release.kubectl.items("deployments,jobs,services,networkpolicies,cronjobs", release.selector)
    generations = {f"{o['kind']}/{o['metadata']['name']}": str(o["metadata"].get("generation")) for o in found}
    return generations | {pod["metadata"]["uid"]: "pod" for pod in release.pods()}


def made_by_jobs(release: Release) -> dict[str, Object]:
    """Secrets of the release: no manifest has them."""
    return {found["metadata"]["name"]: found["data"] for found in release.kubectl.items("secrets", release.selector)}


def stream(release: Release, cluster: ClusterSettings) -> None:
    with client_pod(release.kubectl, f"{cluster.repository}lora-registry:{cluster.tag}") as client:
        body = {"model": "base", "prompt": "def read_lines(", "max_tokens": 16, "temperature": 0}
        answer = client.stream(f"http://{RELEASE}-gateway/v1/completions", release.api_key(), body)
    assert answer.status == 200, answer.events
    assert answer.events[-1] == "[DONE]"


def _with_images(found: Object, cluster: ClusterSettings) -> Object:
    """The manifest names the images of a release; those of this run have another tag."""
    text = json.dumps(found)
    spec = found.get("spec") or {}
    template = (spec.get("jobTemplate", {}).get("spec", spec).get("template") or {}).get("spec") or {}
    for container in [*template.get("containers", []), *template.get("initContainers", [])]:
        name = container["image"].rpartition("/")[2].partition(":")[0]
        text = text.replace(container["image"], f"{cluster.repository}{name}:{cluster.tag}")
    changed: Object = json.loads(text)
    return changed
