"""Point 12: a model as an object, with pods that run. It comes, grows, changes its source and goes, under streams of
the first model; and the chart's Redis speaks TLS alone.

No pod of the first model is replaced or restarted, and no stream fails or has other tokens. One node is enough.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_point_9 import IMAGE, READY_S, SECOND, ask, components, running
from tests.e2e.test_point_11 import apply_model, status
from tests.support.kube.cluster.client import ClientPod, client_pod
from tests.support.kube.cluster.commands import CommandFailed, wait_until
from tests.support.kube.cluster.documented import run_documented
from tests.support.kube.cluster.images import provide_extra
from tests.support.kube.cluster.load import StreamingLoad, streaming_load
from tests.support.kube.cluster.release import Release, namespace, wait_gone
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE = "stratos-e2e-12"
CRD = "models.stratosserve.io"
STREAMS_AT_ONCE = 2
SMALL = {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
"""One node has room for a further worker of each pool while they are replaced."""
FIXED: dict[str, Any] = {"autoscaling": {"mode": "none"}, "replicas": 1, "resources": SMALL}
VALUES: dict[str, Any] = {
    "redis": {"tls": {"enabled": True}},
    "modelResources": {
        "enabled": True,
        "sources": ["image"],
        "templates": {"default": {"prefill": FIXED, "decode": FIXED}},
    },
}


@pytest.mark.usefixtures("images", "no_leftovers")
def test_point_12_a_model_is_an_object(cluster: ClusterSettings, report: ClusterReport, tmp_path: Path) -> None:
    provide_extra(cluster, IMAGE, "tests/e2e/second_model.Dockerfile")
    environment = documented(cluster, tmp_path)
    with namespace(NAMESPACE) as kubectl:
        release = Release("stratos", kubectl)
        try:
            run_documented("install", environment)
            wait_until("all pods are ready", lambda: not release.unready(), READY_S)
            before = running(release)
            has_tls_alone(release)
            image = f"{cluster.repository}lora-registry:{cluster.tag}"
            with (
                client_pod(kubectl, image) as client,
                streaming_load(client, release, num_at_once=STREAMS_AT_ONCE) as load,
            ):
                assert ask(client, release).status == 404, "nobody serves it yet"
                figures = comes(client, release, load, cluster)
                assert set(before.items()) <= set(running(release).items()), "no pod was replaced"
                assert components(set(running(release)) - set(before), release) == {"decode-worker", "prefill-worker"}
                figures |= grows(release)
                figures |= changes(client, release, load, cluster)
                figures |= goes(client, release, load)
                wait_until("its workers are gone", lambda: running(release) == before, READY_S)
                load.wait_streams()
                figures |= load.figures()
            assert release.restarts() == {}
            run_documented("uninstall", environment)
            run_documented("remove data", environment)
            wait_gone(release)
        finally:
            for left in models(release):  # after a failure; whoever would take the finalizer away may be gone
                kubectl("delete", "model", left, "--wait=false")
                kubectl("patch", "model", left, "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
            kubectl("delete", "crd", CRD, "--ignore-not-found", "--wait=false")
    report.add("point 12: a model as an object, with pods", has_passed=True, **figures)


def documented(cluster: ClusterSettings, folder: Path) -> dict[str, str]:
    """Of the documented commands, with Models and a Redis that speaks TLS."""
    values = folder / "models-as-objects.values.json"
    values.write_text(json.dumps(VALUES))
    environment = cluster.documented_environment(NAMESPACE)
    return environment | {"HELM_ARGS": f"{environment['HELM_ARGS']} -f {shlex.quote(str(values))}"}


def has_tls_alone(release: Release) -> None:
    """A client without TLS gets no answer, one with it does."""
    asked = "redis-cli ping 2>&1; echo with; redis-cli --tls --insecure ping 2>&1; true"
    plain, secured = release.kubectl("exec", "deploy/stratos-redis", "--", "sh", "-c", asked).split("with")
    assert "PONG" not in plain
    assert "PONG" in secured


def comes(client: ClientPod, release: Release, load: StreamingLoad, cluster: ClusterSettings) -> dict[str, float]:
    """Seconds until its status says so, and until it answers."""
    apply_model(release.kubectl, SECOND, of_image(cluster, "/model"))
    answered_s = wait_until("it answers", lambda: ask(client, release).status == 200, READY_S)
    wait_until("its status says so", lambda: status(release.kubectl, SECOND)["state"] == "Ready", READY_S)
    answer = ask(client, release)
    assert answer.events[-1] == "[DONE]"
    assert answer.text
    load.wait_streams()
    return {"answers after, s": answered_s}


def grows(release: Release) -> dict[str, float]:
    """By the scale of its Deployment."""
    release.kubectl("scale", "deployment", f"stratos-decode-{SECOND}", "--replicas=2")
    took_s = wait_until("two decode workers", lambda: shown(release, "decode") == "2/2", READY_S)
    return {"a second decode worker after, s": took_s}


def changes(client: ClientPod, release: Release, load: StreamingLoad, cluster: ClusterSettings) -> dict[str, float]:
    """Another source under its name: every request has an answer, before, while its pods are replaced, and after."""
    before = status(release.kubectl, SECOND)
    apply_model(release.kubectl, SECOND, of_image(cluster, "/other"))

    def is_changed() -> bool:
        answer = ask(client, release, may_think=True)
        assert answer.events[-1] == "[DONE]", "a request failed while its pods were replaced"
        found = status(release.kubectl, SECOND)
        is_recorded = found["record"]["count"] > before["record"]["count"]
        is_other = found["digest"] != before["digest"]
        return bool(is_recorded and is_other and found["reason"] == "Serving" and shown(release, "decode") == "2/2")

    took_s = wait_until("all of its workers have the other source", is_changed, 2 * READY_S)
    load.wait_streams()
    return {"another source after, s": took_s}


def goes(client: ClientPod, release: Release, load: StreamingLoad) -> dict[str, float]:
    """Seconds until nobody knows it, and until the object is gone."""
    release.kubectl("delete", "model", SECOND, "--wait=false")
    unknown_s = wait_until("nobody knows it", lambda: ask(client, release).status == 404, READY_S)
    gone_s = unknown_s + wait_until("the object is gone", lambda: not models(release), READY_S)
    load.wait_streams()
    return {"taken away: unknown after, s": unknown_s, "taken away: gone after, s": gone_s}


def of_image(cluster: ClusterSettings, path: str) -> dict[str, Any]:
    reference = f"{cluster.repository}{IMAGE}:{cluster.tag}"
    return {"source": {"image": {"reference": reference, "path": path}}, "servedName": SECOND}


def shown(release: Release, pool: str) -> str:
    """Ready and wanted workers, as ``kubectl get models`` shows them."""
    return str(status(release.kubectl, SECOND).get("pools", {}).get(pool, {}).get("shown", ""))


def models(release: Release) -> list[str]:
    try:
        return [found["metadata"]["name"] for found in release.kubectl.items("models")]
    except CommandFailed:  # the kind is gone, or was never there
        return []
