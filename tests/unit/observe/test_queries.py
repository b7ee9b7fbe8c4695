"""Every query of a dashboard, a rule or an alert names series and labels that the services have. They are executed in
tests/integration/platform/test_observed.py, which needs Prometheus."""

from __future__ import annotations

import re

import pytest

from stratos.observe.alerts.table import ALERTS
from stratos.observe.dashboards.pages import DASHBOARDS
from stratos.observe.recording import RECORDINGS
from tests.support.observed.promql import QueryError, known_series, labels_of

KNOWN = known_series()
QUERIES = [
    (f"{page.title}: {panel.title}", query) for page in DASHBOARDS for panel in page.panels for query in panel.queries
]


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_a_panel_names_series_labels_and_legends_that_there_are(where: str, query) -> None:
    labels = labels_of(query.scoped('release=~".*"', "1m"), KNOWN)
    assert set(re.findall(r"{{(\w+)}}", query.legend)) <= labels


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_names_series_and_labels_that_there_are(alert) -> None:
    labels_of(alert.expr, KNOWN)


def test_recording_rules_keep_the_release_apart() -> None:
    assert all("release" in KNOWN[rule.name] for rule in RECORDINGS)


@pytest.mark.parametrize(
    "wrong",
    [
        "stratos_requests_opened",
        'stratos_kv_blocks{role="decode"}',
        "sum by (tenant) (stratos_requests_open)",
        "histogram_quantile(0.9, rate(stratos_engine_step_seconds_sum[5m]))",
        "stratos_preemptions",
    ],
)
def test_a_name_that_there_is_not_is_found(wrong: str) -> None:
    with pytest.raises(QueryError):
        labels_of(wrong, KNOWN)
