"""The lease under which one autoscaler acts."""

from __future__ import annotations

import pytest

from stratos.cli.local.lease import Lease
from stratos.common.clock import FakeClock
from stratos.common.errors import BadRequest, Overloaded


def test_the_first_holder_keeps_it_until_it_stops_asking() -> None:
    clock = FakeClock()
    lease = Lease(clock)
    assert lease.hold("a", 10)
    assert not lease.hold("b", 10)
    clock.advance(9)
    assert lease.hold("a", 10)
    clock.advance(9)
    assert not lease.hold("b", 10)
    clock.advance(2)
    assert lease.hold("b", 10)
    assert not lease.hold("a", 10)


def test_calls_of_another_are_refused_while_it_is_held() -> None:
    clock = FakeClock()
    lease = Lease(clock)
    lease.check("a")
    lease.hold("a", 10)
    lease.check("a")
    with pytest.raises(Overloaded, match="another autoscaler"):
        lease.check("b")
    with pytest.raises(Overloaded):
        lease.check("")
    clock.advance(11)
    lease.check("b")


@pytest.mark.parametrize(("holder", "ttl_s", "param"), [("", 1, "holder"), ("a", 0, "ttl_ms"), ("a", 61, "ttl_ms")])
def test_a_lease_needs_a_name_and_a_bounded_time(holder: str, ttl_s: float, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Lease(FakeClock()).hold(holder, ttl_s)
    assert caught.value.param == param
