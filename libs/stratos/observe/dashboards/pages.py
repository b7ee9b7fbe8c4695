"""All pages, in the order in which they are shown."""

from __future__ import annotations

from stratos.observe.dashboards.fleet import AUTOSCALER, FLEET, SERVICE_LEVEL
from stratos.observe.dashboards.money import COSTS
from stratos.observe.dashboards.requests import MODEL, TENANTS
from stratos.observe.dashboards.workers import ENGINE, HANDOFF

DASHBOARDS = (FLEET, SERVICE_LEVEL, MODEL, TENANTS, ENGINE, HANDOFF, AUTOSCALER, COSTS)
