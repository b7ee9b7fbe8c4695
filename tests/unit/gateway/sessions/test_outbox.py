"""What waits for a worker at the same time leaves in one message, where the worker takes that."""

from __future__ import annotations

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.rpc.codec.generation import messages_of
from stratos_gateway.sessions.outbox import MAX_PER_MESSAGE, MAX_PROMPT_IDS, MAX_WAITING, SessionOutbox


def submit(number: int, num_ids: int = 1) -> decode_pb2.SessionRequest:
    return decode_pb2.SessionRequest(submit=decode_pb2.Submit(prompt_ids=[7] * num_ids), submit_number=number)


def outbox_of(*messages: decode_pb2.SessionRequest, takes_further: bool = True) -> SessionOutbox:
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
