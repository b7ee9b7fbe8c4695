"""Point 6: Prometheus finds every pod by the chart's objects, panels show data, faults raise their alerts alone."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from stratos.observe.dashboards.pages import DASHBOARDS
from stratos.observe.panels import Panel
from tests.support.kube.cluster.client import ClientPod, client_pod
from tests.support.kube.cluster.commands import run, wait_until
from tests.support.kube.cluster.crashes import Crasher, crashing
from tests.support.kube.cluster.documented import run_documented
from tests.support.kube.cluster.faults import Faults, watch
from tests.support.kube.cluster.images import provide_extra
from tests.support.kube.cluster.load import streaming_load
from tests.support.kube.cluster.monitoring import ANNOTATED, Monitoring, monitoring, rules, scrape_configs
from tests.support.kube.cluster.nodes import NodePlan, avoiding
from tests.support.kube.cluster.release import CHART, Release, namespace
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings
from tests.support.paths import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
NAMESPACE = "stratos-e2e-6"
ADAPTER = "unit-tests"
PLANNED = "decodeWorker.autoscaling.mode=planner,autoscaling.metricsApi.owner=release"
VALUES = "tests/e2e/point_6.values.yaml"
ARITHMETIC, FLOODED = "tests/e2e/point_6.arithmetic.values.yaml", "tests/e2e/point_6.flooded.values.yaml"
ALERTS: dict[str, Any] = yaml.safe_load((ROOT / "tests/e2e/point_6.alerts.yaml").read_text())
KEPT_ON_SAFE_NODES = ("gateway", "router", "prefillWorker", "loraRegistry", "autoscaler", "redis", "objectStore")
ALL = (*KEPT_ON_SAFE_NODES, "decodeWorker")
WINDOW = "1m"
RAISED_WITHIN_S, QUIET_S = 420.0, 45.0
RESOLVED_WITHIN_S = 420.0


@dataclass(frozen=True, slots=True)
class Watched:
    """Three releases, what watches all, and a pod that asks them. Workers of two of them compute by hand."""

    model: Release
    arithmetic: Release
    flooded: Release
    watch: Monitoring
    client: ClientPod
    cluster: ClusterSettings
    lost_node: str
    crasher: Crasher

    @property
    def releases(self) -> tuple[Release, ...]:
        return self.model, self.arithmetic, self.flooded

    def faults(self, release: Release) -> Faults:
        return Faults(release, self.client, self.cluster, self.lost_node, self.crasher)

    def firing(self, release: Release) -> set[str]:
        return self.watch.firing(f"{NAMESPACE}/{release.name}")


@pytest.fixture(scope="module")
def watched(cluster: ClusterSettings, images: dict[str, float]) -> Iterator[Watched]:
    plan = NodePlan.of_cluster()
    image = provide_extra(cluster, "e2e-prometheus", "tests/e2e/prometheus.Dockerfile")
    with namespace(NAMESPACE) as kubectl:
        model, arithmetic, flooded = (Release(name, kubectl) for name in ("stratos", "arithmetic", "flooded"))
        _install(model, cluster, placed(KEPT_ON_SAFE_NODES, plan.lost), "-f", VALUES, "--set", PLANNED)
        by_hand = placed(ALL, plan.lost)
        with ThreadPoolExecutor(2) as pool:
            installing = pool.submit(_install, arithmetic, cluster, by_hand, "-f", ARITHMETIC)
            _install(flooded, cluster, by_hand, "-f", ARITHMETIC, "-f", FLOODED)
            installing.result()
        run_documented("register an adapter", cluster.documented_environment(NAMESPACE))
        files = {
            "prometheus.yaml": {
                "global": {"evaluation_interval": "15s"},
                "rule_files": ["rules.yaml"],
                "scrape_configs": scrape_configs(kubectl),
            },
            "rules.yaml": rules(kubectl, ALERTS["sooner"]),
        }
        tools = f"{cluster.repository}lora-registry:{cluster.tag}"
        with (
            monitoring(kubectl, image, files, avoid=[plan.lost]) as watch_,
            client_pod(kubectl, tools, avoid=[plan.lost]) as client,
            crashing(tools) as crasher,
        ):
            yield Watched(model, arithmetic, flooded, watch_, client, cluster, plan.lost, crasher)


def placed(components: Sequence[str], lost: str) -> dict[str, Any]:
    """Values by which none of the components goes to the node ``lost``."""
    return {name: {"scheduling": {"affinity": avoiding(lost)}} for name in components}


def _install(release: Release, cluster: ClusterSettings, values: Mapping[str, Any], *flags: str) -> None:
    path = ROOT / "build" / "e2e" / f"{NAMESPACE}.{release.name}.values.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))
    given = [*cluster.helm_arguments(), "-f", str(path), "--set", f"image.tag={cluster.tag}", *flags]
    release.helm("install", CHART, *given, "--wait", "--timeout", "10m")


def test_point_6_scraped_and_shown(watched: Watched, report: ClusterReport) -> None:
    """Both kinds of discovery find every process with metrics; no panel is empty but those of what is not there."""
    pods = [pod for release in watched.releases for pod in release.pods() if _has_metrics(pod)]
    num_up = watched.watch.num_up
    wait_until("every pod is found by the PodMonitors", lambda: num_up("podmonitor/.*") == len(pods), 120)
    wait_until("every pod is found by its annotations", lambda: num_up(ANNOTATED) == len(pods), 120)
    with streaming_load(watched.client, watched.model) as load:
        _ask_what_the_load_does_not(watched)
        _wait_panels(watched)
        figures = load.figures()
    panels = [panel for page in DASHBOARDS for panel in page.panels if _is_here(panel)]
    shown = {"pods scraped": len(pods), "panels with data": len(panels), "dashboards": len(DASHBOARDS)}
    assert watched.model.kubectl.items("configmaps", "grafana_dashboard=1")
    report.add("point 6: scraped by the chart's discovery", has_passed=True, **shown, **figures)


def _has_metrics(pod: dict[str, Any]) -> bool:
    annotations: dict[str, str] = pod["metadata"].get("annotations", {})
    is_scraped = annotations.get("prometheus.io/scrape") == "true"
    return is_scraped and pod["status"]["phase"] == "Running"


def _ask_what_the_load_does_not(watched: Watched) -> None:
    """An adapter, several choices, and what is refused."""
    url, key = f"http://{watched.model.name}-gateway/v1/completions", watched.model.api_key()
    for model, num_prompts, each, status in ((ADAPTER, 1, 2, 200), ("no-such-model", 1, 2, 404), ("base", 3, 16, 429)):
        body = {"model": model, "prompt": ["def f(a, b):"] * num_prompts, "max_tokens": 8, "n": each}
        assert watched.client.stream(url, key, body).status == status


def _wait_panels(watched: Watched) -> None:
    empty: list[str] = []

    def all_show() -> bool:
        empty[:] = _empty_panels(watched)
        return not empty

    try:
        wait_until("no panel is empty", all_show, 240, pause_s=5)
    except AssertionError:
        raise AssertionError(f"empty panels: {empty}") from None


def _is_here(panel: Panel) -> bool:
    return not panel.needs_gpu and panel.title not in ALERTS["not_here"]


def _empty_panels(watched: Watched) -> list[str]:
    scope = f'release="{NAMESPACE}/{watched.model.name}"'
    return [
        f"{page.title}: {panel.title}: {query.expr}"
        for page in DASHBOARDS
        for panel in page.panels
        if _is_here(panel)
        for query in panel.queries
        if not any(math.isfinite(float(found["value"][1])) for found in watched.watch.ask(query.scoped(scope, WINDOW)))
    ]


def test_point_6_faults(watched: Watched, report: ClusterReport) -> None:
    """No stream fails and none has other tokens; each fault raises the alerts of the file and no other.

    Most of it is waiting: each release has its faults beside those of the others.
    """
    faults = watched.faults(watched.model)
    figures: dict[str, object] = {}
    with ThreadPoolExecutor(2) as beside, streaming_load(watched.client, watched.model) as load:
        others = [beside.submit(faults_of, watched) for faults_of in (_faults_of_capacity, _faults_of_a_flood)]
        for name, fault in (
            ("a worker is killed", faults.killed_worker()),
            ("Redis is gone", faults.no_redis()),
            ("a node is cut off", faults.cut_node()),
        ):
            figures |= _tried(watched, watched.model, name, fault)
        load.wait_streams()
        figures |= load.figures()
    report.add("point 6: alerts of faults under load", has_passed=True, **figures)
    by_hand = [other.result() for other in others]
    report.add("point 6: alerts of capacity", has_passed=True, **by_hand[0], **by_hand[1])
    if report.path is not None:
        draw = [sys.executable, "-m", "scripts.docs.draw_dashboards", watched.watch.url, "--minutes", "15"]
        about = "releases on a cluster, under load and under faults, without a GPU"
        run([*draw, "--out", str(report.path.with_name("e2e-dashboards")), "--about", about])


def _faults_of_a_flood(watched: Watched) -> dict[str, object]:
    """Its clients get what batches and queue hold, and 503: no plan refuses them."""
    faults = watched.faults(watched.flooded)
    certificates = faults.short_certificates()
    figures = _tried(watched, watched.flooded, "a certificate is near its end", certificates)
    return figures | _tried(watched, watched.flooded, "the queue is full", faults.full_queue(), last=True)


def _faults_of_capacity(watched: Watched) -> dict[str, object]:
    """What no queue feels: full pools, and workers that start again and again."""
    faults = watched.faults(watched.arithmetic)
    figures = _tried(watched, watched.arithmetic, "a KV pool is full", faults.full_pool())
    killed = faults.killed_again_and_again()
    return figures | _tried(watched, watched.arithmetic, "workers are killed again and again", killed, last=True)


def _tried(
    watched: Watched, release: Release, name: str, fault: AbstractContextManager[None], *, last: bool = False
) -> dict[str, object]:
    """The fault, from no alert to no alert; ``last``: its alerts look back so far that their end is not awaited."""
    expected, tolerated = set(ALERTS["faults"][name]), set(ALERTS["of_the_machine"])

    def firing() -> set[str]:
        return watched.firing(release)

    wait_until("no alert is raised", lambda: not firing() - tolerated, RESOLVED_WITHIN_S)
    start = time.monotonic()
    with fault:
        seen = watch(firing, expected, RAISED_WITHIN_S if expected else 90, QUIET_S)
    lasted_s = time.monotonic() - start
    assert seen - tolerated == expected, f"{name}: raised {sorted(seen)}, expected {sorted(expected)}"
    if not last:
        later = watch(firing, set(), QUIET_S, QUIET_S)
        assert later <= expected | tolerated, f"{name}, at its end: {sorted(later)}"
        wait_until("the alerts are resolved", lambda: not firing() - tolerated, RESOLVED_WITHIN_S)
    return {name: ", ".join(sorted(seen)) or "no alert", f"{name}: lasted, s": lasted_s}
