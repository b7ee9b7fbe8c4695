"""What waits for a worker at the same time leaves in one message, where the worker takes that."""

from __future__ import annotations

import asyncio

import pytest

from stratos.rpc.codec.fields import Part
from stratos.rpc.codec.generation import messages_of
from stratos_gateway.sessions.outbox import MAX_PER_MESSAGE, MAX_PROMPT_IDS, MAX_WAITING, SessionOutbox


def submit(number: int, num_ids: int = 1) -> Part:
    return {"submit": {"prompt_ids": [7] * num_ids}, "submit_number": number}


def outbox_of(*messages: Part, takes_further: bool = True) -> SessionOutbox:
    outbox = SessionOutbox()
    outbox.takes_further = takes_further
    for message in messages:
        assert outbox.put(message)
    return outbox


async def taken(outbox: SessionOutbox) -> list[int]:
    return [message.submit_number for message in messages_of(await outbox.take())]


async def test_what_waits_leaves_together_and_in_its_order() -> None:
    outbox = outbox_of(*map(submit, range(1, MAX_PER_MESSAGE + 3)))
    assert await taken(outbox) == [*range(1, MAX_PER_MESSAGE + 1)]
    assert await taken(outbox) == [MAX_PER_MESSAGE + 1, MAX_PER_MESSAGE + 2]


async def test_a_worker_that_takes_no_further_messages_gets_each_by_itself() -> None:
    outbox = outbox_of(submit(1), submit(2), takes_further=False)
    assert await taken(outbox) == [1]
    assert await taken(outbox) == [2]


async def test_long_prompts_share_no_message_that_would_be_too_large() -> None:
    outbox = outbox_of(submit(1, MAX_PROMPT_IDS), submit(2, 1), submit(3, MAX_PROMPT_IDS + 1), submit(4))
    assert [await taken(outbox) for _ in range(4)] == [[1], [2], [3], [4]]


@pytest.mark.parametrize("takes_further", [False, True])
def test_no_more_than_a_bound_waits(takes_further: bool) -> None:
    outbox = outbox_of(*[submit(1)] * MAX_WAITING, takes_further=takes_further)
    assert not outbox.put(submit(1))


async def test_what_is_no_message_is_told_who_puts_it_and_leaves_with_no_other() -> None:
    outbox = outbox_of(submit(1))
    with pytest.raises((TypeError, ValueError)):
        outbox.put({"submit": {"prompt_ids": [7], "seed": -1}, "submit_number": 2})
    assert outbox.put(submit(3))
    assert await taken(outbox) == [1, 3]


async def test_a_worker_of_an_older_build_gets_no_field_that_it_does_not_know() -> None:
    part = {"submit": {"prompt_ids": [7], "num_prior_tokens": 3}, "submit_number": 1}
    for takes_further, num_prior in ((False, 0), (True, 3)):
        message = await outbox_of(part, takes_further=takes_further).take()
        assert (message.submit.num_prior_tokens, list(message.submit.prompt_ids)) == (num_prior, [7])


async def test_what_comes_a_turn_of_the_loop_later_leaves_with_the_first() -> None:
    loop, outbox = asyncio.get_running_loop(), outbox_of()
    taking = asyncio.create_task(taken(outbox))
    await asyncio.sleep(0)
    loop.call_soon(loop.call_soon, outbox.put, submit(2))
    outbox.put(submit(1))
    assert await taking == [1, 2]
