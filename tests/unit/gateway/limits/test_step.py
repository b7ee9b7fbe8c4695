"""What of its reservation a request has taken in the end, however it ended."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratos.common.errors import BadRequest, Internal, QueueTimeout, StratosError
from stratos_gateway.access.concurrency import Place
from stratos_gateway.answering.output import Output
from stratos_gateway.answering.request import LINE
from stratos_gateway.http.errors import OPENAI_ERRORS
from stratos_gateway.limits.step import LimitsStep
from stratos_gateway.openai.chunks import Usage
from tests.support.fakes.generous_limiter import GenerousLimiter

CLAIMED = 1000


class Answer(Output):
    """Seven tokens so far, to a prompt of a hundred."""

    usage = Usage(100, 7)


def request_of(output: Output | None, error: BaseException | None, **scope: object) -> Any:
    return SimpleNamespace(
        prepared=SimpleNamespace(num_tokens=CLAIMED, num_sequences=1, base_model="m"),
        tenant=None, notices=[], trail={}, output=output, error=error, num_claimed_tokens=0,
        exchange=SimpleNamespace(headers=[], error_form=OPENAI_ERRORS),
        http=SimpleNamespace(scope=scope), place=Place(1),
    )  # fmt: skip


async def settled_at(output: Output | None, error: BaseException | None, *, is_raised: bool = True) -> int:
    limiter, request = GenerousLimiter(), request_of(output, error)
    try:
        around = LimitsStep(cast("Any", limiter)).around(request)
        assert around is not None
        async with around:
            if error is not None and is_raised:
                raise error
    except BaseException as raised:
        if raised is not error:
            raise
    [found] = limiter.settled
    return found


@pytest.mark.parametrize("is_raised", [False, True], ids=["within a stream", "with a status"])
@pytest.mark.parametrize("error", [QueueTimeout("no room in time"), Internal("a bug")])
async def test_a_failure_of_the_platform_counts_for_no_more_than_came_of_it(
    error: StratosError, is_raised: bool
) -> None:
    assert await settled_at(Answer(), error, is_raised=is_raised) == 7
    assert await settled_at(None, error, is_raised=is_raised) == 0


async def test_of_an_answer_that_others_make_a_failure_counts_for_nothing_here() -> None:
    """Who comes back to a recorded answer has paid for its tokens where they were made."""

    class Followed(Answer):
        num_limited_tokens = 0

    assert await settled_at(Followed(), QueueTimeout("its record cannot be read")) == 0


async def test_else_what_an_answer_took_counts_and_without_one_all_that_was_claimed() -> None:
    assert await settled_at(Answer(), None) == 107
    assert await settled_at(Answer(), BadRequest("no")) == 107
    assert await settled_at(None, asyncio.CancelledError()) == CLAIMED


async def test_a_client_that_leaves_in_the_turn_that_serves_it_has_taken_nothing() -> None:
    class LeftLimiter(GenerousLimiter):
        async def take(self, reservation: Any) -> None:
            await super().take(reservation)
            raise asyncio.CancelledError

    limiter = LeftLimiter()
    around = LimitsStep(cast("Any", limiter)).around(request_of(None, None))
    assert around is not None
    with pytest.raises(asyncio.CancelledError):
        await around.__aenter__()
    assert limiter.settled == [0]


def test_a_line_of_a_batch_takes_nothing_of_its_tenants_rates() -> None:
    step = LimitsStep(cast("Any", GenerousLimiter()))
    assert step.around(request_of(Answer(), None, **{LINE: object()})) is None


async def test_a_plan_without_limits_has_nothing_to_settle_and_its_receipt_says_so() -> None:
    limiter, request = GenerousLimiter(claims=(), state=()), request_of(None, None)
    request.notices = [(b"x-budget", b"low")]
    assert LimitsStep(cast("Any", limiter)).around(request) is None
    assert request.trail == {"limits": ()}
    assert request.exchange.headers == [(b"x-budget", b"low")]
    assert (request.num_claimed_tokens, limiter.settled) == (CLAIMED, [])
