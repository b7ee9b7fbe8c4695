"""A full gateway: which request gives way to which."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.errors import Overloaded, StratosError
from stratos.core.tenancy.plan import BATCH, PREMIUM, STANDARD, Plan
from stratos.core.tenant import Tenant
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.metrics import GatewayMetrics


class Door:
    """A gateway with three places."""

    def __init__(self, stack: ExitStack) -> None:
        self.admission = Admission(3, 3, GatewayMetrics(CollectorRegistry()))
        self.stack = stack
        self.ended: list[str] = []

    def enter(self, name: str, plan: Plan, *, has_begun: bool = False) -> None:
        tenant = Tenant(name=name, plan=replace(plan))
        place = self.stack.enter_context(self.admission.enter(tenant))

        def end(error: StratosError) -> None:
            assert isinstance(error, Overloaded)
            self.ended.append(name)

        self.stack.enter_context(self.admission.ends_by(place, end, lambda: has_begun))


def test_the_newest_of_the_lowest_class_gives_way_and_no_other() -> None:
    with ExitStack() as stack:
        door = Door(stack)
        for name, plan in (("b1", BATCH), ("b2", BATCH), ("s1", STANDARD)):
            door.enter(name, plan)
        door.enter("p1", PREMIUM)
        door.enter("s2", STANDARD)
        door.enter("p2", PREMIUM)
        assert door.ended == ["b2", "b1", "s2"]
        with pytest.raises(Overloaded):
            door.enter("s3", STANDARD)
        with pytest.raises(Overloaded):
            door.enter("b3", BATCH)


def test_an_answer_that_has_begun_stays() -> None:
    with ExitStack() as stack:
        door = Door(stack)
        for name in ("b1", "b2", "b3"):
            door.enter(name, BATCH, has_begun=True)
        with pytest.raises(Overloaded):
            door.enter("p", PREMIUM)
        assert door.ended == []


def test_a_displaced_request_is_asked_once() -> None:
    with ExitStack() as stack:
        door = Door(stack)
        for name, plan in (("b1", BATCH), ("p1", PREMIUM), ("p2", PREMIUM)):
            door.enter(name, plan)
        door.enter("p3", PREMIUM)
        with pytest.raises(Overloaded):
            door.enter("p4", PREMIUM)
        assert door.ended == ["b1"]
