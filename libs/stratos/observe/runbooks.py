"""A page for each alert: what it means, what to look at, what to do."""

from __future__ import annotations

from stratos.observe.alerts.alert import Alert
from stratos.observe.alerts.table import GROUPS

_SEVERITY = {"page": "people notice it now", "ticket": "within a working day"}


def runbook(alert: Alert) -> str:
    """The page, in Markdown."""
    check = "\n".join(f"- {line}" for line in alert.check)
    act = "\n".join(f"- {line}" for line in alert.act)
    held = "" if alert.lasting == "0m" else f", for {alert.lasting}"
    return (
        f"# {alert.name}\n\n{alert.summary} Severity `{alert.severity}`: {_SEVERITY[alert.severity]}.\n\n"
        f"## Meaning\n\n{alert.meaning}\n\n## Check\n\n{check}\n\n## Act\n\n{act}\n\n"
        f"## Rule\n\n```\n{alert.expr}\n```\n\nRaised where it has a result{held}.\n"
    )


def runbook_index() -> str:
    """README.md of the folder."""
    lines = ["# Runbooks", "", "One page for each alert: what it means, what to look at, what to do."]
    for group, alerts in GROUPS.items():
        lines += ["", f"## {group.capitalize()}", ""]
        lines += [f"- [{alert.name}]({alert.name}.md) ({alert.severity}): {alert.summary}" for alert in alerts]
    return "\n".join(lines) + "\n"
