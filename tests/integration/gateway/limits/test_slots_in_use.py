"""More clients than a tenant may have sequences, at one to three gateways: nearly all slots are in use, and no more."""

from __future__ import annotations

import asyncio
import random

import pytest

from stratos.store.counters.leases import LEASE
from tests.support.limits.cases import USED
from tests.support.limits.gateways import LimitedGateways, LimitParts, OpenRequest, cost_of, make_tenant
from tests.support.limits.ordered import KNOWN_LATE_S
from tests.support.limits.planted import STRANDING, KeepsSlots
from tests.support.virtual_loop import run_virtual

LIMIT, CLIENTS, SECONDS, WARM_S, PAUSE_S = 16, 40, 12.0, 2.0, 0.05
MOVES_S, MOVED = 1.5, 0.88
"""All clients go to the next gateway; then a slot is free for the tenth of a second that it takes to follow."""
PLAN = {"max_sequences": LIMIT, "requests_per_min": 600_000, "tokens_per_min": 60_000_000}


class SlotUse:
    """Sums sequences over time, once it is warm."""

    def __init__(self, platform: LimitedGateways) -> None:
        self._clock = platform.clock
        self._warm = self._last = platform.clock.now() + WARM_S
        self._num_running = 0
        self._slot_s = 0.0

    def change(self, number: int) -> None:
        """So many more run from now on."""
        now = max(self._last, self._clock.now())
        self._slot_s += self._num_running * (now - self._last)
        self._last, self._num_running = now, self._num_running + number

    @property
    def share(self) -> float:
        """Part of the slots that was in use."""
        return self._slot_s / (LIMIT * (self._last - self._warm))


async def crowd(
    url: str, num_gateways: int, parts: LimitParts | None = None, *, is_moving: bool = False
) -> tuple[float, list[str]]:
    """Clients that come again at once, whatever they hear; the part of the slots in use, and broken promises."""
    platform, draw, tenant = LimitedGateways(url, num_gateways, parts), random.Random(5), make_tenant(**PLAN)
    platform.book.known_late_s = KNOWN_LATE_S
    await asyncio.sleep(3.0)
    use, end = SlotUse(platform), platform.clock.now() + SECONDS

    async def client() -> None:
        while platform.clock.now() < end:
            place = int(platform.clock.now() / MOVES_S) if is_moving else draw.randrange(num_gateways)
            gateway = platform.gateways[place % num_gateways]
            found = await gateway.take(tenant, cost_of())
            if not isinstance(found, OpenRequest):
                await asyncio.sleep(PAUSE_S)
                continue
            use.change(1)
            await asyncio.sleep(draw.uniform(0.3, 1.0))
            use.change(-1)
            gateway.settle(found, 1)

    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    await asyncio.sleep(SECONDS)
    use.change(0)
    share = use.share
    await asyncio.gather(*clients)
    platform.close()
    return share, platform.book.problems(is_exact=False)


@pytest.mark.parametrize("num_gateways", [1, 2, 3])
def test_slots_that_are_wanted_are_in_use_and_no_more(redis_url: str, num_gateways: int) -> None:
    share, problems = run_virtual(crowd(redis_url, num_gateways))
    assert share >= USED
    assert problems == []


def test_slots_follow_clients_that_move(redis_url: str) -> None:
    share, problems = run_virtual(crowd(redis_url, 3, is_moving=True))
    assert share >= MOVED
    assert problems == []


def test_that_finds_gateways_that_keep_slots_which_others_lack(redis_url: str) -> None:
    assert STRANDING.count("\n") == LEASE.count("\n") - 2
    share, _ = run_virtual(crowd(redis_url, 3, LimitParts(leaser=KeepsSlots, script=STRANDING), is_moving=True))
    assert share < MOVED
