"""What a router keeps of its gateways' reports, and that they survive the wire."""

from __future__ import annotations

import dataclasses

import pytest

from stratos.common.errors import BadRequest
from stratos.core.fleet import Fleet
from stratos.core.gateway_load import NUM_TTFT_COUNTS, GatewayLoad
from stratos.rpc.codec.fleet import FLEET, GATEWAY_LOAD
from stratos_router.gateway_loads import MAX_GATEWAYS, GatewayLoads

LOAD = GatewayLoad(gateway="g1", model_digest="m", num_open=3, num_judged=2, num_violations=1)


def test_the_last_report_of_a_gateway_counts_until_it_has_been_silent_for_long() -> None:
    loads = GatewayLoads()
    loads.add_report(LOAD, 0.0)
    loads.add_report(dataclasses.replace(LOAD, num_open=5), 1.0)
    loads.add_report(dataclasses.replace(LOAD, gateway="g2"), 4.0)
    assert [(load.gateway, load.num_open, load.age_s) for load in loads.recent(5.0)] == [("g1", 5, 4.0), ("g2", 3, 1.0)]
    assert [load.gateway for load in loads.recent(12.0)] == ["g2"]


def test_their_number_is_bounded() -> None:
    loads = GatewayLoads()
    for number in range(MAX_GATEWAYS + 10):
        loads.add_report(dataclasses.replace(LOAD, gateway=f"g{number}"), 0.0)
    assert len(loads.recent(1.0)) == MAX_GATEWAYS


def test_a_report_survives_the_wire_and_counts_of_other_bounds_are_refused() -> None:
    full = dataclasses.replace(LOAD, first_tokens=tuple(range(NUM_TTFT_COUNTS)), age_s=0.25)
    assert GATEWAY_LOAD.from_pb(GATEWAY_LOAD.to_pb(full)) == full
    assert FLEET.from_pb(FLEET.to_pb(Fleet(gateways=(full, LOAD)))).gateways == (full, LOAD)
    for broken in (dataclasses.replace(LOAD, first_tokens=(1, 2)), dataclasses.replace(LOAD, gateway="")):
        with pytest.raises(BadRequest):
            GATEWAY_LOAD.from_pb(GATEWAY_LOAD.to_pb(broken))
