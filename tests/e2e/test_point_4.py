"""Point 4: disturbances under constant streaming load. None of it is proved yet; each test says what is missing."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.e2e]
LOAD = "a load generator in the cluster that compares every stream with the undisturbed run"


@pytest.mark.xfail(reason=f"missing: {LOAD}", run=False)
def test_point_4_drained_node() -> None:
    raise NotImplementedError


@pytest.mark.xfail(reason=f"missing: {LOAD}, and certificates renewed under it", run=False)
def test_point_4_rotated_certificates() -> None:
    raise NotImplementedError


@pytest.mark.xfail(reason=f"missing: {LOAD}, and images of two versions", run=False)
def test_point_4_rolling_upgrade() -> None:
    raise NotImplementedError


@pytest.mark.xfail(reason=f"missing: {LOAD}; nodes are lost by E2E_NODE", run=False)
def test_point_4_killed_node() -> None:
    raise NotImplementedError


@pytest.mark.xfail(reason=f"missing: {LOAD}; nodes are cut off by E2E_NODE", run=False)
def test_point_4_node_cut_for_15_s() -> None:
    raise NotImplementedError


@pytest.mark.xfail(reason="missing: a stream that goes on at another gateway after its own died", run=False)
def test_point_4_killed_gateway() -> None:
    raise NotImplementedError
