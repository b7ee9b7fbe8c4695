"""Files made from the tables are those that are committed, and Grafana can place it."""

from __future__ import annotations

import itertools
import re

import pytest

from scripts.chart.generate_dashboards import stale
from stratos.common.errors import DependencyDown
from stratos.observe.alerts.stores import JOBS
from stratos.observe.alerts.table import ALERTS
from stratos.observe.dashboards.pages import DASHBOARDS
from stratos.observe.grafana import grafana_json
from stratos.observe.local_prometheus import MISSING, find_prometheus, target
from stratos.observe.rule_files import rule_groups
from tests.support.paths import ROOT


def test_the_committed_files_are_made_of_the_tables() -> None:
    assert [path.name for path in stale()] == [], "run `make manifests`"


def test_names_are_given_once() -> None:
    for names in ([alert.name for alert in ALERTS], [page.uid for page in DASHBOARDS]):
        assert len(names) == len(set(names))
    for page in DASHBOARDS:
        assert len({panel.title for panel in page.panels}) == len(page.panels)


@pytest.mark.parametrize("page", DASHBOARDS, ids=lambda page: page.uid)
def test_panels_lie_side_by_side(page) -> None:
    placed = [panel["gridPos"] for panel in grafana_json(page)["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in placed)
    for one, other in itertools.combinations(placed, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_every_alert_says_how_bad_it_is_and_where_its_runbook_is() -> None:
    rules = [rule for group in rule_groups("somewhere")["groups"] for rule in group["rules"] if "alert" in rule]
    assert [rule["alert"] for rule in rules] == [alert.name for alert in ALERTS]
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["runbook_url"] == f"somewhere/{rule['alert']}.md"


def test_without_prometheus_the_reason_is_said() -> None:
    with pytest.raises(DependencyDown) as caught:
        find_prometheus(path="")
    assert caught.value.message == MISSING


def test_a_target_has_the_labels_that_queries_use() -> None:
    labels = {"component": "decode-worker", "instance": "decode-0", "release": "local"}
    assert target("decode-0", "decode_worker", "127.0.0.1:9") == {"targets": ["127.0.0.1:9"], "labels": labels}


def test_the_readme_counts_dashboards_and_alerts() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(DASHBOARDS)} dashboards, {len(ALERTS)} alerts" in text


@pytest.mark.parametrize("preset", ["cpu", "gpu"])
def test_the_alert_on_failed_jobs_knows_every_job_of_the_chart(preset: str) -> None:
    """The defect: a model whose job failed was served nowhere, and nothing said so."""
    text = (ROOT / "deploy" / "k8s" / f"{preset}.yaml").read_text(encoding="utf-8")
    names = re.findall(r"^kind: Job\nmetadata:\n  name: (\S+)$", text, re.MULTILINE)
    assert len(names) >= 4
    assert [name for name in names if not re.fullmatch(JOBS, name)] == []
    assert not any(re.fullmatch(JOBS, name) for name in ("train-model-x", "stratos-backup-29405160"))
