"""Commands that are run while the stores of an installation are still starting."""

from __future__ import annotations

import pytest

from stratos.cli import stores
from stratos.cli.stores import once_answered
from stratos.common.clock import FakeClock
from stratos.common.errors import BadRequest, DependencyDown, InvalidApiKey, StratosError

CLOCK = FakeClock()


class Starting:
    """A store that answers at the third call; each takes 4 s."""

    def __init__(self, error: StratosError | None = None) -> None:
        self.num_calls = 0
        self._error = error or DependencyDown("not yet")

    async def call(self) -> str:
        self.num_calls += 1
        CLOCK.advance(4)
        if self.num_calls < 3:
            raise self._error
        return "ready"


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "RETRY_S", 0.0)


async def test_it_waits_until_they_answer() -> None:
    assert await once_answered(Starting().call, 10, CLOCK) == "ready"


async def test_a_key_that_is_not_there_yet_is_waited_for_where_that_is_asked() -> None:
    store = Starting(InvalidApiKey("not yet"))
    with pytest.raises(InvalidApiKey):
        await once_answered(store.call, 10, CLOCK)
    assert await once_answered(store.call, 10, CLOCK, not_yet=InvalidApiKey) == "ready"


@pytest.mark.parametrize(("wait_s", "num_calls"), [(0, 1), (7, 2)])
async def test_and_no_longer_than_asked(wait_s: float, num_calls: int) -> None:
    store = Starting()
    with pytest.raises(DependencyDown):
        await once_answered(store.call, wait_s, CLOCK)
    assert store.num_calls == num_calls


async def test_what_is_wrong_is_not_waited_for() -> None:
    async def wrong() -> None:
        raise BadRequest("another store is there")

    with pytest.raises(BadRequest):
        await once_answered(wrong, 60, CLOCK)
