"""A request redeems its token before it runs, and gives it back where its client got nothing."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.continuation_errors import ContinuationExpired, ContinuationUsed
from stratos.common.errors import DependencyDown, Overloaded
from stratos.store.counters.redemptions import Claimed, Redeemer
from stratos_gateway.answering.request import LINE, BatchLine, PreparedGeneration
from stratos_gateway.continuations.step import ContinuationStep
from stratos_gateway.metrics import GatewayMetrics
from tests.unit.gateway.continuations.test_tokens import STATE

NOW_S = STATE.expires_unix_s - 60.0


@dataclass
class FakeRedemptions:
    owners: dict[str, Redeemer] = field(default_factory=dict)
    is_away: bool = False

    async def claim(self, tenant_id: str, name: str, redeemer: Redeemer, left_s: float) -> Claimed:
        if self.is_away:
            raise DependencyDown
        if left_s <= 0 and name not in self.owners:
            return Claimed.EXPIRED
        if self.owners.get(name, redeemer).name != redeemer.name:
            return Claimed.USED
        self.owners[name] = redeemer
        return Claimed.OK

    async def release(self, tenant_id: str, name: str, redeemer: Redeemer) -> None:
        if self.is_away:
            raise DependencyDown
        if self.owners.get(name) == redeemer:
            del self.owners[name]


def make_request(stream_id: str = "", line: str = "", **fields: Any) -> Any:
    prepared = PreparedGeneration.__new__(PreparedGeneration)
    object.__setattr__(prepared, "continued", fields.pop("continued", STATE))
    own = BatchLine(name=line, epoch=1, created_unix_s=1, arrived_unix_ms=1)
    return SimpleNamespace(
        prepared=prepared, tenant=SimpleNamespace(id="acme"), stream_id=stream_id, num_claimed_tokens=9,
        http=SimpleNamespace(scope={LINE: own} if line else {}),
        **{"has_answered": False, "followed": None, "is_only_shown": False, "has_output": False, **fields},
    )  # fmt: skip


def make_step(redemptions: FakeRedemptions, now_s: float = NOW_S) -> ContinuationStep:
    return ContinuationStep(cast("Any", redemptions), lambda: now_s, GatewayMetrics(CollectorRegistry()))


async def run(step: ContinuationStep, request: Any, error: Exception | None = None) -> None:
    async with step.around(request) or nullcontext():
        if error is not None:
            raise error
        request.has_answered = True


async def test_the_first_one_wins_and_the_others_are_told_and_pay_nothing() -> None:
    redemptions, refused = FakeRedemptions(), make_request()
    step = make_step(redemptions)
    await run(step, make_request())
    with pytest.raises(ContinuationUsed):
        await run(step, refused)
    assert refused.num_claimed_tokens == 0
    await run(step, make_request(continued=replace(STATE, answer_id="another")))
    await run(step, make_request(continued=None))


async def test_a_request_that_gave_nothing_gives_the_token_back() -> None:
    redemptions = FakeRedemptions()
    step = make_step(redemptions)
    with pytest.raises(Overloaded):
        await run(step, make_request(), Overloaded())
    await run(step, make_request())


async def taken_over(step: ContinuationStep, request: Any, *, has_output: bool, error: Exception | None = None) -> None:
    """A request that finds a record, and goes on with its answer here."""
    async with step.around(request):
        await request.redeem(has_output)
        if error is not None:
            raise error


async def test_who_is_shown_a_record_redeems_once_it_computes_and_gives_nothing_back() -> None:
    redemptions = FakeRedemptions()
    step, late = make_step(redemptions), make_step(redemptions, now_s=STATE.expires_unix_s + 5.0)
    shown = make_request("strm_1", is_only_shown=True, followed=object())
    await run(late, shown)
    assert redemptions.owners == {}
    with pytest.raises(Overloaded):
        await taken_over(step, shown, has_output=False, error=Overloaded())
    with pytest.raises(ContinuationUsed):
        await run(step, make_request("strm_2"))
    redemptions.owners.clear()  # a claim that is older than its record's last token
    await taken_over(late, shown, has_output=True)
    await run(late, make_request("strm_1", followed=object(), has_output=True))
    with pytest.raises(ContinuationExpired):
        await taken_over(late, shown, has_output=False)


async def test_a_token_that_another_one_redeemed_in_between_is_not_gone_on_with() -> None:
    redemptions = FakeRedemptions()
    step = make_step(redemptions)
    with pytest.raises(Overloaded):
        await run(step, make_request("strm_1"), Overloaded())
    await run(step, make_request("strm_2"))
    follower = make_request("strm_1", is_only_shown=True, followed=object())
    with pytest.raises(ContinuationUsed):
        await taken_over(step, follower, has_output=False)


async def test_a_line_of_a_batch_may_run_twice() -> None:
    redemptions = FakeRedemptions()
    await run(make_step(redemptions), make_request(line="batch_1-4"))
    await run(make_step(redemptions, now_s=STATE.expires_unix_s + 5.0), make_request(line="batch_1-4"))
    with pytest.raises(ContinuationUsed):
        await run(make_step(redemptions), make_request(line="batch_1-5"))


async def test_its_time_ends() -> None:
    with pytest.raises(ContinuationExpired):
        await run(make_step(FakeRedemptions(), now_s=STATE.expires_unix_s), make_request())


async def test_nothing_runs_while_it_cannot_be_redeemed() -> None:
    redemptions = FakeRedemptions(is_away=True)
    with pytest.raises(DependencyDown):
        await run(make_step(redemptions), make_request())
