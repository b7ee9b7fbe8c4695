"""Point 9: two models behind one set of gateways. The second comes and goes under streams of the first one.

No pod that runs is replaced or restarted, and no stream fails or has other tokens. One node is enough.
"""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube.cluster.client import ClientPod, Streamed, client_pod
from tests.support.kube.cluster.commands import wait_until
from tests.support.kube.cluster.documented import run_documented
from tests.support.kube.cluster.images import provide_extra
from tests.support.kube.cluster.load import StreamingLoad, streaming_load
from tests.support.kube.cluster.release import Release, namespace, wait_gone
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE, IMAGE = "stratos-e2e-9", "e2e-second-model"
SECOND = "tools"
STREAMS_AT_ONCE = 2
READY_S = 300.0


@pytest.mark.usefixtures("images", "no_leftovers")
def test_point_9_a_second_model_comes_and_goes(cluster: ClusterSettings, report: ClusterReport, tmp_path: Path) -> None:
    provide_extra(cluster, IMAGE, "tests/e2e/second_model.Dockerfile")
    alone, both = environments(cluster, tmp_path)
    with namespace(NAMESPACE) as kubectl:
        release = Release("stratos", kubectl)
        run_documented("install", alone)
        wait_until("all pods are ready", lambda: not release.unready(), READY_S)
        before = running(release)
        image = f"{cluster.repository}lora-registry:{cluster.tag}"
        with client_pod(kubectl, image) as client, streaming_load(client, release, num_at_once=STREAMS_AT_ONCE) as load:
            assert ask(client, release).status == 404, "nobody serves it yet"
            figures: dict[str, Any] = {f"added: {name}": s for name, s in added(client, release, load, both).items()}
            assert set(before.items()) <= set(running(release).items()), "no pod was replaced"
            assert components(set(running(release)) - set(before), release) == {"decode-worker", "prefill-worker"}

            figures["taken away: unknown after, s"] = taken_away(client, release, load, alone)
            wait_until("its workers are gone", lambda: running(release) == before, READY_S)
            load.wait_streams()
            figures |= load.figures()
        assert release.restarts() == {}
        run_documented("uninstall", alone)
        run_documented("remove data", alone)
        wait_gone(release)
    report.add("point 9: a second model comes and goes", has_passed=True, **figures)


def environments(cluster: ClusterSettings, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Of the documented commands, without the second model and with it."""
    image = {"repository": f"stratosserve/{IMAGE}", "path": "/model"}
    first = {"name": "base", "source": {"image": {"repository": "stratosserve/model-demo", "path": "/model"}}}
    values = folder / "two-models.values.json"
    values.write_text(json.dumps({"models": [first, {"name": SECOND, "source": {"image": image}}]}))
    alone = cluster.documented_environment(NAMESPACE)
    return alone, alone | {"HELM_ARGS": f"{alone['HELM_ARGS']} -f {shlex.quote(str(values))}"}


def added(client: ClientPod, release: Release, load: StreamingLoad, environment: dict[str, str]) -> dict[str, float]:
    """Seconds until the upgrade was through, and until the model answered."""
    start = time.monotonic()
    run_documented("upgrade", environment)
    upgraded_s = time.monotonic() - start
    wait_until("the second model answers", lambda: ask(client, release).status == 200, READY_S)
    answered_s = time.monotonic() - start
    answer = ask(client, release)
    assert answer.events[-1] == "[DONE]"
    assert answer.text
    load.wait_streams()
    return {"upgrade, s": upgraded_s, "answers after, s": answered_s}


def taken_away(client: ClientPod, release: Release, load: StreamingLoad, environment: dict[str, str]) -> float:
    """Seconds until nobody knows the model any more."""
    start = time.monotonic()
    run_documented("upgrade", environment)
    wait_until("nobody knows the second model", lambda: ask(client, release).status == 404, READY_S)
    unknown_s = time.monotonic() - start
    load.wait_streams()
    return unknown_s


def ask(client: ClientPod, release: Release, *, may_think: bool = False) -> Streamed:
    """It would think first, which is not text; templates of other models refuse to be asked not to."""
    body = {"model": SECOND, "messages": [{"role": "user", "content": "What is 3 plus 4?"}], "max_tokens": 16}
    more = {"temperature": 0} | ({} if may_think else {"chat_template_kwargs": {"enable_thinking": False}})
    return client.stream("http://stratos-gateway/v1/chat/completions", release.api_key(), body | more)


def running(release: Release) -> dict[str, str]:
    """Pods that no job made, by name -> uid."""
    pods = [pod["metadata"] for pod in release.pods() if pod["metadata"]["ownerReferences"][0]["kind"] != "Job"]
    return {about["name"]: about["uid"] for about in pods}


def components(pods: set[str], release: Release) -> set[str]:
    label = "app.kubernetes.io/component"
    return {pod["metadata"]["labels"][label] for pod in release.pods() if pod["metadata"]["name"] in pods}
