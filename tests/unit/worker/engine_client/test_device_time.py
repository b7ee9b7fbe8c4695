"""Every nanosecond since the engine was opened belongs to a tenant, to the platform, or to nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratos.common.clock import FakeClock
from stratos.core.tenant import PLATFORM_TENANT
from stratos.engine.contract.results import StepResult, StepShares
from stratos.worker.engine_client.device_time import DeviceTime

TENANTS = st.sampled_from(["", PLATFORM_TENANT, "a", "b", "c"])
STEPS = st.tuples(st.floats(0, 1), st.floats(0, 1), st.dictionaries(TENANTS, st.integers(1, 1000)))


@given(steps=st.lists(STEPS, max_size=20))
def test_all_parts_are_the_wall_time(steps: list[tuple[float, float, dict[str, int]]]) -> None:
    clock = FakeClock()
    began_s, device = clock.now(), DeviceTime(clock)
    for gap_s, step_s, tenants in steps:
        clock.advance(gap_s)
        result = StepResult(step=0, began_s=clock.now())
        clock.advance(step_s)
        result.ended_s = clock.now()
        result.shares = StepShares(tenants=tenants, num_tokens=sum(tenants.values()))
        device.on_step(result)
    assert not {"", PLATFORM_TENANT} & device.by_tenant.keys()
    wall_ns = round((clock.now() - began_s) * 1e9)
    parts = sum(device.by_tenant.values()) + device.platform_ns + device.idle_ns
    assert abs(parts - wall_ns) <= 1 + len(steps)


def test_a_step_is_divided_by_tokens() -> None:
    device = DeviceTime(FakeClock())
    shares = StepShares(tenants={"a": 30, "b": 10, PLATFORM_TENANT: 10}, num_tokens=50)
    device.on_step(StepResult(step=0, began_s=1.0, ended_s=1.5, shares=shares))
    assert device.by_tenant == {"a": 300_000_000, "b": 100_000_000}
    assert device.platform_ns == 100_000_000
