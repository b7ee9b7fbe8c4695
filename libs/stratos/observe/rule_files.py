"""Recording rules and alerts as Prometheus reads them; the chart wraps the same groups in a PrometheusRule."""

from __future__ import annotations

from typing import Any

import yaml

from stratos.observe.alerts.table import GROUPS
from stratos.observe.recording import RECORDINGS

RUNBOOKS = "docs/runbooks"
INTERVAL = "30s"


def rule_groups(runbooks: str = RUNBOOKS, interval: str = INTERVAL) -> dict[str, Any]:
    """The content of a rule file.

    Args:
        runbooks: folder or address of the runbooks.
        interval: how often rules are evaluated.
    """
    recordings = [{"record": rule.name, "expr": rule.expr} for rule in RECORDINGS]
    groups = [{"name": "stratos-recordings", "interval": interval, "rules": recordings}]
    for name, alerts in GROUPS.items():
        rules = [
            {
                "alert": alert.name,
                "expr": alert.expr,
                "for": alert.lasting,
                "labels": {"severity": alert.severity},
                "annotations": {"summary": alert.summary, "runbook_url": f"{runbooks}/{alert.name}.md"},
            }
            for alert in alerts
        ]
        groups.append({"name": f"stratos-{name}", "interval": interval, "rules": rules})
    return {"groups": groups}


def rules_text(runbooks: str = RUNBOOKS, interval: str = INTERVAL) -> str:
    """The rule file."""
    return str(yaml.safe_dump(rule_groups(runbooks, interval), sort_keys=False, width=1000, allow_unicode=True))
