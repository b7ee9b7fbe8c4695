"""KEDA's external scaler: which number a trigger asks for, and that what is not known is an error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stratos.api.keda.v1 import externalscaler_pb2
from stratos.common.clock import FakeClock
from stratos.common.errors import BadRequest, DependencyDown, NotFound
from stratos.core.fleet import Fleet, QueueDepth
from stratos.core.placement import WorkerRole
from stratos.planning.fleet_sum import FleetSum
from stratos.planning.settings import PoolKey
from stratos_autoscaler.board import BoardConfig, LoadBoard
from stratos_autoscaler.keda import KedaServicer, parse_trigger

POOLS = [PoolKey(role=WorkerRole.DECODE, model_digest=name, model_name=name) for name in ("base", "other")]


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.board = LoadBoard(BoardConfig(), self.clock, "demo")
        self.servicer = KedaServicer(self.board, "stratos")

    def show(self, **waiting: int) -> None:
        queues = tuple(
            QueueDepth(model_digest=name, priority_class=0, num_requests=count, num_tokens=0, oldest_s=0.0)
            for name, count in waiting.items()
        )
        self.board.show_fleet(FleetSum(fleet=Fleet(queues=queues)), POOLS)


def ref(namespace: str = "stratos", **metadata: str) -> Any:
    given = {"model": "base", "role": "decode", **metadata}
    return externalscaler_pb2.ScaledObjectRef(name="decode", namespace=namespace, scalerMetadata=given)


async def test_a_trigger_gets_its_models_number_and_its_target() -> None:
    world = World()
    world.show(base=7, other=50)
    (spec,) = (await world.servicer.GetMetricSpec(ref(target="4.5"), None)).metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("stratos_queue_depth", 5, 4.5)
    ask = externalscaler_pb2.GetMetricsRequest(scaledObjectRef=ref(), metricName="stratos_queue_depth")
    (value,) = (await world.servicer.GetMetrics(ask, None)).metricValues
    assert (value.metricValue, value.metricValueFloat) == (7, 7.0)
    assert (await world.servicer.IsActive(ref(), None)).result
    assert not (await world.servicer.IsActive(ref(activation="7"), None)).result


async def test_the_numbers_of_another_release_of_the_namespace_are_not_ours() -> None:
    world = World()
    world.show(base=7)
    assert (await world.servicer.IsActive(ref(release="demo"), None)).result
    with pytest.raises(NotFound):
        await world.servicer.IsActive(ref(release="second"), None)


async def test_what_is_not_known_is_an_error_so_that_keda_holds() -> None:
    world = World()
    with pytest.raises(DependencyDown):
        await world.servicer.IsActive(ref(), None)
    world.show(base=7)
    with pytest.raises(NotFound):
        await world.servicer.IsActive(ref(metric="stratos_kv_utilisation"), None)
    with pytest.raises(NotFound):
        await world.servicer.IsActive(ref(namespace="elsewhere"), None)
    world.clock.advance(11)
    with pytest.raises(DependencyDown):
        await world.servicer.GetMetrics(externalscaler_pb2.GetMetricsRequest(scaledObjectRef=ref()), None)


@pytest.mark.parametrize(
    "metadata", [{"metric": "cpu"}, {"target": "0"}, {"target": "x"}, {"activation": "-1"}, {"qeue": "3"}]
)
def test_a_trigger_that_cannot_be_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        parse_trigger(metadata)


async def test_the_stream_tells_changes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratos_autoscaler.keda.WATCH_S", 0.001)
    world = World()
    world.show(base=0)
    stream = world.servicer.StreamIsActive(ref(), None)
    assert not (await anext(stream)).result
    following = asyncio.ensure_future(anext(stream))
    world.clock.advance(11)  # stale numbers tell nothing
    await asyncio.sleep(0.01)
    assert not following.done()
    world.show(base=2)
    assert (await following).result
    await stream.aclose()
