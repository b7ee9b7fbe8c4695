"""A request redeems its token before it runs, and gives it back where its client got nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.continuation_errors import ContinuationExpired, ContinuationUsed
from stratos.common.errors import DependencyDown, Overloaded
from stratos.store.counters.redemptions import Claimed
from stratos_gateway.answering.request import PreparedGeneration
from stratos_gateway.continuations.step import ContinuationStep
from stratos_gateway.metrics import GatewayMetrics
from tests.unit.gateway.continuations.test_tokens import STATE

NOW_S = STATE.expires_unix_s - 60.0


@dataclass
class FakeRedemptions:
    owners: dict[str, str] = field(default_factory=dict)
    is_away: bool = False

    async def claim(self, tenant_id: str, name: str, redeemer: str, left_s: float) -> Claimed:
        if self.is_away:
            raise DependencyDown
        if left_s <= 0 and name not in self.owners:
            return Claimed.EXPIRED
        return Claimed.OK if self.owners.setdefault(name, redeemer) == redeemer else Claimed.USED

    async def release(self, tenant_id: str, name: str, redeemer: str) -> None:
        if self.is_away:
            raise DependencyDown
        if self.owners.get(name) == redeemer:
            del self.owners[name]


def make_request(stream_id: str = "", **fields: Any) -> Any:
    prepared = PreparedGeneration.__new__(PreparedGeneration)
    object.__setattr__(prepared, "continued", fields.pop("continued", STATE))
    return SimpleNamespace(
        prepared=prepared, tenant=SimpleNamespace(id="acme"), stream_id=stream_id,
        **{"has_answered": False, "followed": None, **fields},
    )  # fmt: skip


def make_step(redemptions: FakeRedemptions, now_s: float = NOW_S) -> ContinuationStep:
    return ContinuationStep(cast("Any", redemptions), lambda: now_s, GatewayMetrics(CollectorRegistry()))


async def run(step: ContinuationStep, request: Any, error: Exception | None = None) -> None:
    async with step.around(request):
        if error is not None:
            raise error
        request.has_answered = True


async def test_the_first_one_wins_and_the_others_are_told() -> None:
    redemptions = FakeRedemptions()
    step = make_step(redemptions)
    await run(step, make_request())
    with pytest.raises(ContinuationUsed):
        await run(step, make_request())
    await run(step, make_request(continued=replace(STATE, answer_id="another")))
    await run(step, make_request(continued=None))


async def test_a_request_that_gave_nothing_gives_the_token_back() -> None:
    redemptions = FakeRedemptions()
    step = make_step(redemptions)
    with pytest.raises(Overloaded):
        await run(step, make_request(), Overloaded())
    await run(step, make_request())


async def test_a_recorded_one_may_come_again_at_any_gateway_also_later() -> None:
    redemptions = FakeRedemptions()
    await run(make_step(redemptions), make_request("strm_1"))
    late = make_step(redemptions, now_s=STATE.expires_unix_s + 5.0)
    await run(late, make_request("strm_1"))
    with pytest.raises(Overloaded):  # of a second connection: the first one goes on
        await run(late, make_request("strm_1", followed=object()), Overloaded())
    with pytest.raises(ContinuationUsed):
        await run(late, make_request("strm_2"))


async def test_its_time_ends() -> None:
    with pytest.raises(ContinuationExpired):
        await run(make_step(FakeRedemptions(), now_s=STATE.expires_unix_s), make_request())


async def test_nothing_runs_while_it_cannot_be_redeemed() -> None:
    redemptions = FakeRedemptions(is_away=True)
    with pytest.raises(DependencyDown):
        await run(make_step(redemptions), make_request())
