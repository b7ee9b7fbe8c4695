"""The default HPA by its arithmetic: a constant load settles, a load that comes and goes is followed both ways.

Whether a cluster does the same is for a cluster to show; here the rendered object is put into the rules that Kubernetes
documents.  The metric that the chart had before, waiting requests alone, is the control: it swings for ever.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from scripts.chart.rendering import NO_RENDERER, has_renderer
from tests.support.kube.chart_objects import kinds
from tests.support.kube.chart_rendering import checked
from tests.support.kube.hpa_model import HpaModel, Workers, watch

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
LOADS = [(10, 3, 60), (10, 3, 300), (20, 3, 180), (4, 3, 60), (11.5, 3, 60)]
"""Requests a second, those of one worker, and seconds of a worker's start."""


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    found: dict[str, Any] = kinds(checked({}), "HorizontalPodAutoscaler")["demo-decode-base"]["spec"]
    return found


def sizes_after(changes: list[tuple[int, int]], since_s: int) -> list[tuple[int, int]]:
    return [(at, size) for at, size in changes if at > since_s]


@pytest.mark.parametrize(("load", "rate", "start_s"), LOADS)
@pytest.mark.parametrize("window_s", [60, 300])
def test_a_constant_load_settles(spec: dict[str, Any], load: float, rate: float, start_s: int, window_s: int) -> None:
    spec = copy.deepcopy(spec)
    spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = window_s
    pool = Workers(rate=rate, start_s=start_s)
    changes = watch(HpaModel(spec), pool, lambda _: load, 2 * 3600)
    assert len(sizes_after(changes, 300)) <= 2, changes
    settled = changes[-1][1]
    assert load < settled * rate, "it carries the load"
    assert settled <= load / rate / 0.75 + 1, "and is no larger than the target asks for"


def test_waiting_requests_alone_swing_for_ever(spec: dict[str, Any]) -> None:
    """The control, as the chart had it: one metric, one pod a minute."""
    old = copy.deepcopy(spec)
    old["metrics"] = old["metrics"][:1]
    old["behavior"]["scaleDown"]["policies"] = [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    changes = watch(HpaModel(old), Workers(rate=3), lambda _: 10, 2 * 3600)
    assert len(sizes_after(changes, 300)) > 50


def test_a_load_that_varies_around_its_mean_keeps_its_pool(spec: dict[str, Any]) -> None:
    draws = random.Random(7)
    pool = Workers(rate=3)
    changes = watch(HpaModel(spec), pool, lambda _: max(0.0, draws.gauss(10, 10**0.5)), 2 * 3600)
    assert len(sizes_after(changes, 600)) <= 6, changes


def test_one_to_many_to_one_three_times(spec: dict[str, Any]) -> None:
    """Fifteen minutes of load, fifteen without; the way down within the window and a minute."""
    pool = Workers(rate=3)
    changes = watch(HpaModel(spec), pool, lambda now: 10.0 if now // 900 % 2 == 0 else 0.0, 5400)
    for begin, end in ((900, 1800), (2700, 3600), (4500, 5400)):
        down = [(at, size) for at, size in changes if begin < at <= end]
        assert down[-1][1] == spec["minReplicas"]
        assert down[-1][0] <= begin + 300 + 60 + 30, "30 s are what was open when the load went"
    assert max(size for _, size in changes) >= 5
