"""The short form: one node is enough. Install as documented, stream through the Service, test, uninstall."""

from __future__ import annotations

import time

import pytest

from tests.support.kube.cluster.client import client_pod, kv_bytes
from tests.support.kube.cluster.commands import wait_until
from tests.support.kube.cluster.documented import run_documented
from tests.support.kube.cluster.release import Release, namespace, wait_gone
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE = "stratos-e2e-short"
PROMPT = (
    "def read_lines(path):\n    with open(path) as file:\n        return [line.rstrip() for line in file]\n\n\ndef "
)
"""Too long for a decode worker to compute by itself: its KV travels between pods."""


@pytest.mark.usefixtures("no_leftovers")
def test_short_install_stream_uninstall(
    cluster: ClusterSettings, images: dict[str, float], report: ClusterReport
) -> None:
    figures: dict[str, object] = dict(images)
    start = time.monotonic()
    with namespace(NAMESPACE) as kubectl:
        release = Release("stratos", kubectl)
        environment = cluster.documented_environment(NAMESPACE)
        run_documented("install", environment)
        figures["install_s"] = time.monotonic() - start
        wait_until("all pods are ready", lambda: not release.unready())
        figures["ready_s"] = time.monotonic() - start
        with client_pod(kubectl, f"{cluster.repository}lora-registry:{cluster.tag}") as client:
            body = {"model": "base", "prompt": PROMPT, "max_tokens": 32, "temperature": 0, "seed": 1}
            answer = client.stream("http://stratos-gateway/v1/completions", release.api_key(), body)
        assert answer.status == 200, answer.events
        assert answer.events[-1] == "[DONE]"
        assert len(answer.events) > 8, "it came in pieces"
        assert answer.text.strip()
        figures |= {"first_event_s": answer.first_s, "stream_s": answer.whole_s, "events": len(answer.events)}
        figures["kv_bytes"] = kv_bytes(release)
        assert "Succeeded" in run_documented("test", environment)
        assert release.restarts() == {}
        stopping = time.monotonic()
        run_documented("uninstall", environment)
        run_documented("remove data", environment)
        wait_gone(release)
        figures["uninstall_s"] = time.monotonic() - stopping
    figures["whole_s"] = time.monotonic() - start + sum(images.values())
    report.add("short: one node", has_passed=True, **figures)
