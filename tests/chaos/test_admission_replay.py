"""The long form of ``tests/unit/router/test_admission_replay.py``."""

from __future__ import annotations

import pytest

from tests.support.worlds.admission_replay import AdmissionReplay, check

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


@pytest.mark.parametrize("num_routers", [1, 2, 3])
def test_ten_thousand_arrivals(num_routers: int) -> None:
    check(AdmissionReplay(num_routers, seed=7).run(10_000, rate=100.0), num_routers, 10_000)
