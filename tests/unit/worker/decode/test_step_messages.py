"""News of a step are one message to a gateway, however many of its requests had a token."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing

from stratos.common.clock import FakeClock
from stratos.worker.decode.session import OutputSession, StepDeltas
from tests.unit.worker.decode.test_request_table import Bench, submission

NUM_REQUESTS, NUM_TOKENS = 50, 20


async def read_all(session: OutputSession, num_tokens: int) -> tuple[list[StepDeltas], Counter[str]]:
    """Messages with tokens until so many have come, and tokens by request."""
    found, tokens = list[StepDeltas](), Counter[str]()
    async with aclosing(session.messages()) as messages:
        async for message in messages:
            if isinstance(message, StepDeltas):
                found.append(message)
                for delta in message.deltas:
                    tokens[delta.key.request_id] += sum(len(choice.token_ids) for choice in delta.choices)
            if tokens.total() >= num_tokens:
                return found, tokens
    raise AssertionError("the session ended")


async def test_a_step_of_many_requests_is_one_message_for_each_gateway() -> None:
    """Two gateways with 25 requests each: no more messages to each than there were steps."""
    bench = Bench(max_requests=NUM_REQUESTS)
    await bench.engine.start()
    assert isinstance(bench.clock, FakeClock)
    try:
        before, sessions = bench.engine.status().step, [bench.session() for _ in range(2)]
        for number in range(NUM_REQUESTS):
            bench.table.submit(sessions[number % 2], submission(f"r{number}", max_tokens=NUM_TOKENS))
        wanted = NUM_REQUESTS // 2 * NUM_TOKENS
        heard = await asyncio.gather(*(read_all(session, wanted) for session in sessions))
        num_steps = bench.engine.status().step - before
        for messages, tokens in heard:
            assert set(tokens.values()) == {NUM_TOKENS}
            assert len(messages) <= num_steps < wanted / 4
            for message in messages:
                keys = [delta.key for delta in message.deltas]
                assert len(keys) == len(set(keys)), "what a request has to say is in it once"
    finally:
        await bench.table.close()
        await bench.engine.close()
