"""All alerts, in groups."""

from __future__ import annotations

from stratos.observe.alerts.requests import REQUEST_ALERTS
from stratos.observe.alerts.stores import STORE_ALERTS
from stratos.observe.alerts.workers import WORKER_ALERTS

GROUPS = {"requests": REQUEST_ALERTS, "workers": WORKER_ALERTS, "stores": STORE_ALERTS}
ALERTS = tuple(alert for group in GROUPS.values() for alert in group)
