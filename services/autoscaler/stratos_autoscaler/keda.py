"""KEDA's external scaler: the same numbers for a ScaledObject, for clusters where KEDA owns the external-metrics API.

A trigger's metadata names it: ``metric`` (default the queue depth), ``release`` (where the autoscaler knows its own),
``model``, ``role``, ``target`` (the average that a pod should have, default 10) and ``activation`` (active above it,
default 0).  What is not known is an error, so that KEDA holds what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from stratos.api.keda.v1 import externalscaler_pb2, externalscaler_pb2_grpc
from stratos.common.errors import BadRequest, DependencyDown, NotFound
from stratos.planning.external_metrics import METRIC_NAMES, QUEUE_DEPTH
from stratos_autoscaler.board import LoadBoard

WATCH_S = 0.5
_KNOWN = {
    "metric",
    "release",
    "model",
    "role",
    "target",
    "activation",
    "scalerAddress",
    "tlsClientCert",
    "tlsClientKey",
    "caCert",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """The number that a ScaledObject wants, and its bounds."""

    metric: str
    labels: Mapping[str, str]
    target: float
    activation: float


def parse_trigger(metadata: Mapping[str, str]) -> Trigger:
    """A trigger's metadata.

    Raises:
        BadRequest: an unknown name, or a value that cannot be.
    """
    metric = metadata.get("metric", QUEUE_DEPTH)
    if metric not in METRIC_NAMES:
        raise BadRequest(f"there is no metric {metric!r}; there are {', '.join(METRIC_NAMES)}", param="metric")
    if unknown := sorted(name for name in set(metadata) - _KNOWN if not name.startswith("unsafe")):
        raise BadRequest(f"unknown metadata of the trigger: {', '.join(unknown)}", param=unknown[0])
    labels = {name: metadata[name] for name in ("release", "model", "role") if metadata.get(name)}
    target = _number(metadata, "target", 10.0)
    if target <= 0:
        raise BadRequest("target must be above 0", param="target")
    return Trigger(metric=metric, labels=labels, target=target, activation=_number(metadata, "activation", 0.0))


class KedaServicer(externalscaler_pb2_grpc.ExternalScalerServicer):
    """Messages in, messages out.

    Args:
        board: has the numbers.
        namespace: of the release; ScaledObjects of others are refused. Empty takes any.
    """

    def __init__(self, board: LoadBoard, namespace: str) -> None:
        self._board = board
        self._namespace = namespace

    async def IsActive(self, request: Any, context: Any) -> externalscaler_pb2.IsActiveResponse:
        """Whether the number is above its activation."""
        return externalscaler_pb2.IsActiveResponse(result=self._is_active(self._trigger(request)))

    async def StreamIsActive(self, request: Any, context: Any) -> AsyncIterator[externalscaler_pb2.IsActiveResponse]:
        """The same at every change, until the caller leaves; what is not known changes nothing."""
        trigger = self._trigger(request)
        last: bool | None = None
        while True:
            with contextlib.suppress(DependencyDown, NotFound):
                if (is_active := self._is_active(trigger)) is not last:
                    last = is_active
                    yield externalscaler_pb2.IsActiveResponse(result=is_active)
            await asyncio.sleep(WATCH_S)

    async def GetMetricSpec(self, request: Any, context: Any) -> externalscaler_pb2.GetMetricSpecResponse:
        """The number's name and target."""
        trigger = self._trigger(request)
        spec = externalscaler_pb2.MetricSpec(
            metricName=trigger.metric, targetSize=math.ceil(trigger.target), targetSizeFloat=trigger.target
        )
        return externalscaler_pb2.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: Any, context: Any) -> externalscaler_pb2.GetMetricsResponse:
        """The number."""
        trigger = self._trigger(request.scaledObjectRef)
        value = self._value(trigger)
        number = externalscaler_pb2.MetricValue(
            metricName=trigger.metric, metricValue=math.ceil(value), metricValueFloat=value
        )
        return externalscaler_pb2.GetMetricsResponse(metricValues=[number])

    def _trigger(self, request: Any) -> Trigger:
        if self._namespace and request.namespace and request.namespace != self._namespace:
            raise NotFound(f"this autoscaler has the numbers of namespace {self._namespace} alone")
        return parse_trigger(dict(request.scalerMetadata))

    def _is_active(self, trigger: Trigger) -> bool:
        return self._value(trigger) > trigger.activation

    def _value(self, trigger: Trigger) -> float:
        found = [
            metric.value
            for metric in self._board.numbers()
            if metric.name == trigger.metric and trigger.labels.items() <= dict(metric.labels).items()
        ]
        if not found:
            raise NotFound(f"{trigger.metric} has no value now for {dict(trigger.labels)}")
        return sum(found)


def _number(metadata: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(metadata.get(name) or default)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise BadRequest(f"{name} must be a number, not {metadata.get(name)!r}", param=name)
    return value
