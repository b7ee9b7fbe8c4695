"""Which end-to-end points run side by side."""

from __future__ import annotations

import re

from tests.e2e import lanes
from tests.support.paths import ROOT

TEXTS = {path.stem.removeprefix("test_"): path.read_text() for path in (ROOT / lanes.FOLDER).glob("test_*.py")}
DISTURBS = re.compile(r"nodes\.(?:drain|disturb|bring)\(|cluster\.api|cut_node|drain-node")
SERVES_METRICS = re.compile(r"metricsApi\.owner=release|production\.values|has_fixed_sizes=False|METRICS_API")


def points_that(pattern: re.Pattern[str]) -> set[str]:
    return {point for point, text in TEXTS.items() if pattern.search(text)}


def test_every_point_runs_once() -> None:
    run = [point for points in (*lanes.BESIDE.values(), lanes.ALONE) for point in points]
    assert sorted(run) == sorted(TEXTS)


def test_what_takes_nodes_or_the_api_server_away_has_the_cluster_to_itself() -> None:
    found = points_that(DISTURBS)
    assert {"point_4", "point_6", "point_7", "point_13"} <= found
    assert found <= set(lanes.ALONE)


def test_what_a_cluster_has_one_of_is_in_one_lane() -> None:
    for pattern, example in ((SERVES_METRICS, "point_5"), (re.compile(r"models\.stratosserve\.io"), "point_11")):
        found = points_that(pattern) - set(lanes.ALONE)
        assert example in found
        assert len([name for name, points in lanes.BESIDE.items() if found & set(points)]) == 1, found
