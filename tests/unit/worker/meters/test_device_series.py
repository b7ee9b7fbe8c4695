"""Series of whose the device's time was."""

from __future__ import annotations

from collections import Counter as PyCounter

import pytest
from prometheus_client import CollectorRegistry, Counter

from stratos.rpc.metrics import OTHER_TENANTS
from stratos.worker.meters import device_series
from stratos.worker.meters.device_series import DeviceSeries


def test_a_tenant_that_was_quiet_for_long_gives_its_series_to_one_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_series, "QUIET_LOOKS", 3)
    registry, by_tenant = CollectorRegistry(), PyCounter[str]()
    seconds = Counter("device_seconds", "Seconds.", ("state", "tenant"), registry=registry)
    series = DeviceSeries(seconds, 2)

    def look(*tenants: str) -> dict[str, float | None]:
        by_tenant.update(dict.fromkeys(tenants, 10**9))
        series.show(by_tenant, 0, 0)
        names = ("a", "b", "c", OTHER_TENANTS)
        found = {n: registry.get_sample_value("device_seconds_total", {"state": "tenant", "tenant": n}) for n in names}
        return {name: value for name, value in found.items() if value is not None}

    assert look("a", "b", OTHER_TENANTS) == {"a": 1, "b": 1, OTHER_TENANTS: 1}
    assert look("b", "c") == {"a": 1, "b": 2, OTHER_TENANTS: 2}, "all places are taken"
    look("b")
    assert look("b", "c") == {"b": 4, "c": 1, OTHER_TENANTS: 2}, "what it took before stays where it was counted"
    assert look("a", "b", "c") == {"b": 5, "c": 2, OTHER_TENANTS: 3}, "it comes back among the others"
