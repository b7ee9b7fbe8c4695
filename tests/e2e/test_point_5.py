"""Point 5: HPAs on our own API. They follow the queue up and down, no stream is cut, and a sleeping model wakes.

Under a constant load they rest: on workers that compute by hand, since real ones would only share the machine's cores.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from tests.support.kube.cluster.client import ClientPod, client_pod
from tests.support.kube.cluster.commands import wait_until
from tests.support.kube.cluster.faults import ANSWER_S
from tests.support.kube.cluster.load import streaming_load
from tests.support.kube.cluster.programs import FLOOD, METRIC
from tests.support.kube.cluster.release import CHART, METRICS_API, Release, metrics_api_is_available, namespace
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
NAMESPACE = "stratos-e2e-5"
NUM_CYCLES, NUM_AT_ONCE = 3, 16
SCALE_DOWN_S, BEGINNING_S = 30, 300.0
SCALED = (
    f"autoscaling.metricsApi.owner=release,autoscaling.scaleDownSeconds={SCALE_DOWN_S},decodeWorker.autoscaling.mode=hpa,"
    "decodeWorker.autoscaling.maxReplicas=3,decodeWorker.autoscaling.queueDepth=2,"
    "decodeWorker.config.scheduler.maxNumSeqs=2,router.config.admission.maxWaitingPerWorker=0,"
    # Nothing is refused for its wait: all nodes may share a few cores.
    "router.config.queue.ttlS=180,gateway.config.requests.placementTimeoutS=200"
)
SLEEPING = (
    "prefillWorker.autoscaling.mode=hpa,prefillWorker.autoscaling.minReplicas=0,decodeWorker.autoscaling.minReplicas=0,"
    "autoscaler.config.planner.idleS=20,gateway.config.http.sseKeepaliveS=2"
)
AT_REST = (
    f"autoscaling.metricsApi.owner=release,autoscaling.scaleDownSeconds={SCALE_DOWN_S},"
    "decodeWorker.autoscaling.mode=hpa,decodeWorker.autoscaling.maxReplicas=4,decodeWorker.config.engine=fake,"
    "decodeWorker.config.scheduler.maxNumSeqs=2,prefillWorker.config.engine=fake"
)
STEP = "decodeWorker.config.fake.stepS=0.1"
CONSTANT = 4
"""Requests at once: two workers of two slots are full with them, three are used as the target has it."""


@pytest.mark.usefixtures("no_leftovers", "images")
def test_point_5_rest_under_a_constant_load(cluster: ClusterSettings, report: ClusterReport) -> None:
    with namespace(f"{NAMESPACE}-rest") as kubectl:
        release = Release("stratos", kubectl)
        flags = [*cluster.small_arguments(), "--set", AT_REST, "--set-json", STEP]
        release.helm("install", CHART, *flags, "--wait", "--timeout", "10m")
        wait_until("the API is available", lambda: metrics_api_is_available(kubectl))
        watched_s = BEGINNING_S + 2 * SCALE_DOWN_S
        url, body = (
            f"http://{release.name}-gateway/v1/completions",
            {"model": "base", "prompt": "def f(", "max_tokens": 64},
        )
        task = [url, release.api_key(), body | {"ignore_eos": True}, CONSTANT, watched_s + 30, ANSWER_S]
        image = f"{cluster.repository}lora-registry:{cluster.tag}"
        with client_pod(kubectl, image) as client, ThreadPoolExecutor(1) as pool:
            load = pool.submit(client.python, FLOOD, task, watched_s + ANSWER_S + 60)
            sizes = _watch_size(release, watched_s)
            statuses = json.loads(load.result())
        changes = [(round(at), size) for (_, before), (at, size) in pairwise(sizes) if size != before]
        late = [change for change in changes if change[0] > BEGINNING_S]
        assert statuses.keys() == {"200"}, statuses
        assert 2 <= sizes[-1][1] <= 4, changes
        assert len(late) <= 2, f"the load is constant, the pool is not: {changes}"
        release.helm("uninstall", "--wait", "--timeout", "5m")
    figures = {"watched for, s": watched_s, "changes (after s, to)": changes, "requests": statuses["200"]}
    report.add("point 5: rest under a constant load", has_passed=True, **figures)


def _watch_size(release: Release, duration_s: float) -> list[tuple[float, int]]:
    """(seconds, size), again and again."""
    start, sizes = time.monotonic(), [(0.0, _size(release))]
    while sizes[-1][0] < duration_s:
        time.sleep(2)
        sizes.append((time.monotonic() - start, _size(release)))
    return sizes


@pytest.mark.usefixtures("no_leftovers", "images")
def test_point_5_scaling(cluster: ClusterSettings, report: ClusterReport) -> None:
    with namespace(NAMESPACE) as kubectl:
        release = Release("stratos", kubectl)
        flags = cluster.small_arguments()
        release.helm("install", CHART, *flags, "--set", SCALED, "--wait", "--timeout", "10m")
        wait_until("the API is available", lambda: metrics_api_is_available(kubectl))
        with client_pod(kubectl, f"{cluster.repository}lora-registry:{cluster.tag}") as client:
            cycles = [_cycle(release, client, loses_leader=number == 1) for number in range(NUM_CYCLES)]
            release.helm("upgrade", CHART, *flags, "--set", f"{SCALED},{SLEEPING}", "--wait", "--timeout", "10m")
            woken = _sleep_and_wake(release, client)
        events = _events(release)
        release.helm("uninstall", "--wait", "--timeout", "5m")
        assert METRICS_API not in kubectl("get", "apiservices", "-o", "name")
    report.add("point 5: scaling on the queue", has_passed=True, cycles=cycles, **woken, events=events)


def _cycle(release: Release, client: ClientPod, *, loses_leader: bool) -> dict[str, Any]:
    """1 -> N -> 1 with the load of one rush; no stream of it is cut. The acting autoscaler may be lost at its begin."""
    assert _size(release) == 1
    with streaming_load(client, release, num_at_once=NUM_AT_ONCE) as load:
        if loses_leader:
            _kill_leader(release)
        start = time.monotonic()
        wait_until("the pool grows", lambda: _size(release) > 1, 60)
        grown_s = time.monotonic() - start
        wait_until("the pool is as large as it may be", lambda: _size(release) == 3, 120)
        sizes = {size for _, size in _watch_size(release, 2 * SCALE_DOWN_S)}
        assert sizes == {3}, f"the load is constant, the pool is not: {sizes}"
        figures = load.figures()
    start = time.monotonic()
    wait_until("the pool shrinks", lambda: _size(release) == 1, SCALE_DOWN_S + 60)
    lost = {"its autoscaler was killed": True} if loses_leader else {}
    times = {"grown after its first streams, s": grown_s, "small again after its end, s": time.monotonic() - start}
    return lost | times | figures


def _kill_leader(release: Release) -> None:
    chosen = f"{release.selector},app.kubernetes.io/component=autoscaler"
    names = [pod["metadata"]["name"] for pod in release.kubectl.items("pods", chosen)]
    (leader,) = [
        name for name in names
        if float(ClientPod(release.kubectl, name).python(METRIC, "stratos_autoscaler_active ")) == 1
    ]  # fmt: skip
    release.kubectl("delete", "pod", leader, "--force", "--grace-period=0", timeout_s=60)


def _sleep_and_wake(release: Release, client: ClientPod) -> dict[str, Any]:
    """Both pools end without requests; one request starts both, and its client hears of it all the while."""
    wait_until("the model sleeps", lambda: (_size(release), _size(release, "prefill")) == (0, 0), 300)
    url = f"http://{release.name}-gateway/v1/completions"
    answer = client.stream(url, release.api_key(), {"model": "base", "prompt": "def f(", "max_tokens": 4})
    assert answer.status == 200
    assert answer.events[-1] == "[DONE]"
    assert (_size(release), _size(release, "prefill")) == (1, 1)
    return {"woken after, s": answer.whole_s}


def _size(release: Release, role: str = "decode") -> int:
    found = json.loads(release.kubectl("get", "deployment", f"{release.name}-{role}-base", "-o", "json"))
    return int(found["spec"]["replicas"])


def _events(release: Release) -> list[str]:
    """What the HPA says that it did."""
    found = [item for item in release.kubectl.items("events") if item["reason"] == "SuccessfulRescale"]
    assert found
    return [item["message"].partition("(")[0] for item in found]
