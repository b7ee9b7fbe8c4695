from __future__ import annotations

import pytest

from stratos.common.clock import FakeClock, SystemClock


def test_a_fake_clock_moves_only_when_told_and_never_back() -> None:
    clock = FakeClock(start=5.0)
    assert clock.now() == clock.now() == 5.0
    clock.advance(0.25)
    assert clock.now() == 5.25
    with pytest.raises(AssertionError):
        clock.advance(-1)


def test_the_system_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.now() for _ in range(100)]
    assert readings == sorted(readings)
