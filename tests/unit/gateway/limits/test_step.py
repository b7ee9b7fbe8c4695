"""What of its reservation a request has taken in the end, however it ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratos.common.errors import BadRequest, QueueTimeout, StratosError
from stratos_gateway.answering.output import Output
from stratos_gateway.limits.step import LimitsStep
from stratos_gateway.openai.chunks import Usage
from tests.support.fakes.generous_limiter import GenerousLimiter

CLAIMED = 1000


class Answer(Output):
    """Seven tokens so far, to a prompt of a hundred."""

    usage = Usage(100, 7)


def a_request(output: Output | None, error: BaseException | None) -> Any:
    return SimpleNamespace(
        prepared=SimpleNamespace(num_tokens=CLAIMED, num_sequences=1), tenant=None, notices=[], trail={},
        exchange=SimpleNamespace(headers=[]), output=output, error=error, num_claimed_tokens=0,
    )  # fmt: skip


async def settled_at(output: Output | None, raised: BaseException | None, told: StratosError | None) -> int:
    limiter, request = GenerousLimiter(), a_request(output, raised or told)
    try:
        async with LimitsStep(cast("Any", limiter)).around(request):
            if raised is not None:
                raise raised
    except BaseException as error:
        if error is not raised:
            raise
    [found] = limiter.settled
    return found


@pytest.mark.parametrize("is_told", [False, True], ids=["with a status", "within a stream"])
async def test_a_failure_of_the_platform_counts_for_no_more_than_came_of_it(is_told: bool) -> None:
    error = QueueTimeout("no room in time")
    raised, told = (None, error) if is_told else (error, None)
    assert await settled_at(Answer(), raised, told) == 7
    assert await settled_at(None, raised, told) == 0


async def test_else_what_an_answer_took_counts_and_without_one_all_that_was_claimed() -> None:
    assert await settled_at(Answer(), None, None) == 107
    assert await settled_at(Answer(), BadRequest("no"), None) == 107
    assert await settled_at(None, RuntimeError("the client left"), None) == CLAIMED
