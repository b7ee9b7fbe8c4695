"""The API's own shapes: discovery, values, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratos.planning.external_metrics import METRIC_NAMES, LoadMetric
from stratos_autoscaler.metrics_api.selectors import quantity

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
GROUP_VERSION = f"{GROUP}/{VERSION}"
LIST_KIND = "ExternalMetricValueList"
_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    500: "InternalError", 503: "ServiceUnavailable",
}  # fmt: skip
Document = dict[str, Any]


def group() -> Document:
    """The one group that is served."""
    version = {"groupVersion": GROUP_VERSION, "version": VERSION}
    return {"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version}


def group_list() -> Document:
    """All groups that are served."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}


def resource_list() -> Document:
    """All metrics, as resources."""
    resources = [
        {"name": name, "singularName": "", "namespaced": True, "kind": LIST_KIND, "verbs": ["get"]}
        for name in METRIC_NAMES
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION, "resources": resources}


def value_list(found: Sequence[LoadMetric], timestamp: str) -> Document:
    """Values of one metric.

    Args:
        found: with their labels.
        timestamp: RFC 3339, when they were measured.
    """
    items = [
        {
            "metricName": metric.name,
            "metricLabels": dict(metric.labels),
            "timestamp": timestamp,
            "value": quantity(metric.value),
        }
        for metric in found
    ]
    return {"kind": LIST_KIND, "apiVersion": GROUP_VERSION, "metadata": {}, "items": items}


def refusal(code: int, message: str) -> Document:
    """A ``Status``."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, "InternalError"),
        "code": code,
    }
