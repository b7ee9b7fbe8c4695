"""The report of a run on a cluster names what failed, until that has passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kube.cluster.report import ClusterReport


def test_what_failed_is_named_until_it_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e2e.json"
    monkeypatch.setenv("E2E_REPORT", str(path))
    report = ClusterReport.from_environment("a cluster")
    report.add("point 1: install", has_passed=True, pods=12)
    report.end("test_point_1", seconds=61.2)
    report.end("test_point_2", seconds=4.0, why="no pod is ready")
    page = path.with_suffix(".md").read_text()
    assert "| test_point_2 | **Failed** no pod is ready | 4 |" in page
    assert "| test_point_1 | Passed  | 61 |" in page

    later = ClusterReport.from_environment("a cluster")  # one point alone, on top of what is there
    later.end("test_point_2", seconds=5.0)
    page = path.with_suffix(".md").read_text()
    assert "Failed" not in page
    assert "test_point_1" in page


def test_each_point_and_test_names_what_it_ran_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e2e.json"
    monkeypatch.setenv("E2E_REPORT", str(path))
    monkeypatch.setattr("os.getloadavg", lambda: (3.14, 2.0, 1.0))
    report = ClusterReport.from_environment("a cluster", "e2e-0123")
    report.add("point 1: install", has_passed=True, pods=12)
    report.end("test_point_1", seconds=61.2)
    page = path.with_suffix(".md").read_text()
    assert ", images e2e-0123, load average 3.1 2.0 1.0." in page
    assert "| e2e-0123 | 3.1 2.0 1.0 |" in page


def test_two_runs_side_by_side_write_one_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e2e.json"
    monkeypatch.setenv("E2E_REPORT", str(path))
    first, second = ClusterReport.from_environment("a cluster"), ClusterReport.from_environment("a cluster")
    first.add("point 1: install", has_passed=True, pods=12)
    second.add("point 2: tokens", has_passed=True, requests=4)
    first.end("test_point_1", seconds=61.2)
    page = path.with_suffix(".md").read_text()
    assert "## point 1: install" in page
    assert "## point 2: tokens" in page
    assert "test_point_1" in page
