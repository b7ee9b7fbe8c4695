"""News of a step are one message to a gateway, however many of its requests had a token."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratos.common.clock import FakeClock
from stratos.core.generation import RequestDelta
from stratos.core.requests.records import ChoiceOutput, PositionLogprobs, RequestKey, TokenLogprob
from stratos.engine.contract.results import StepResult
from stratos.rpc.codec.generation import INLINE_PLACES
from stratos.worker.decode import servicer
from stratos.worker.decode.request_table import PORTION
from stratos.worker.decode.session import MAX_DELTAS, MAX_PLACES, OutputSession, StepDeltas, StepProgress
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


async def test_what_a_step_has_for_a_crowd_leaves_turns_to_others() -> None:
    """Statuses and signs of life wait for a portion, and not for all of a step; its tokens stay in order."""
    num = 3 * PORTION
    bench = Bench(max_requests=num)
    bench.policy.may_add.clear()  # steps are told here, and no engine's
    session = bench.session()
    for number in range(num):
        bench.table.submit(session, submission(f"r{number}", max_tokens=9))
    keys = [RequestKey(f"r{number}", 0) for number in range(num)]
    for offset in range(2):
        outputs = [ChoiceOutput(key, 0, offset, [10 + offset]) for key in keys]
        result = StepResult(step=offset, outputs=outputs)
        result.shares.requests = dict.fromkeys(keys, 1)
        bench.table.on_step(result)
        assert session.is_idle, "a step of so many is not taken over at once"
    turns, told = 0, list[StepDeltas]()
    async with aclosing(session.messages()) as messages:
        while len(told) < 2 * num / MAX_DELTAS or not session.is_idle:
            await asyncio.sleep(0)
            turns += 1
            if not session.is_idle and isinstance(message := await anext(messages), StepDeltas):
                told.append(message)
    await bench.table.close()
    assert turns >= 6, "portions of shares, and of outputs"
    assert max(len(message.deltas) for message in told) <= MAX_DELTAS
    tokens = defaultdict[RequestKey, list[int]](list)
    for delta in (delta for message in told for delta in message.deltas):
        tokens[delta.key] += [token for choice in delta.choices for token in choice.token_ids]
    assert tokens == {key: [10, 11] for key in keys}


def telling(name: str, num_places: int) -> Any:
    """A request whose news have so many places with log probabilities."""
    entry, key = PositionLogprobs(TokenLogprob(1, -0.5, 1)), RequestKey(name, 0)
    delta = RequestDelta(key=key, prompt_logprobs=(entry,) * num_places)
    return SimpleNamespace(key=key, drain=lambda: delta)


def session_of(*records: Any) -> OutputSession:
    status = SimpleNamespace(step=1, is_computing=True, slow_step_s=0.0)
    session = OutputSession(cast("Any", SimpleNamespace(status=lambda: status)), FakeClock())
    for record in records:
        session.mark(record)
    session.close()
    return session


async def test_requests_with_many_log_probabilities_share_no_message() -> None:
    session = session_of(telling("a", MAX_PLACES - 1), telling("b", 20_000), telling("c", 1), telling("d", 1))
    messages = [message async for message in session.messages() if isinstance(message, StepDeltas)]
    assert [[delta.key.request_id for delta in message.deltas] for message in messages] == [["a", "b"], ["c", "d"]]
    assert [message.num_places for message in messages] == [MAX_PLACES - 1 + 20_000, 2]


@pytest.mark.parametrize(("num_places", "is_on_loop"), [(INLINE_PLACES, True), (INLINE_PLACES + 1, False)])
async def test_a_long_message_is_made_beside_the_event_loop_and_signs_of_life_come_before_it(
    *, num_places: int, is_on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, has_lived = list[threading.Thread](), threading.Event()

    def made(message: Any, session: Any) -> Any:
        if not isinstance(message, StepProgress):
            threads.append(threading.current_thread())
            assert is_on_loop or has_lived.wait(30.0)
        return message

    monkeypatch.setattr(servicer, "_to_pb", made)
    monkeypatch.setattr(servicer, "PROGRESS_INTERVAL_S", 0.001)
    session, found = session_of(telling("a", num_places)), list[Any]()
    session.num_submits = 5
    async with aclosing(session.messages()) as messages:
        message = await anext(messages)
    session.num_submits = 6
    with ThreadPoolExecutor(1) as pool:
        async for response in servicer.responses_of(message, session, pool):
            found.append(response)
            has_lived.set()
    assert found[-1] is message
    assert {one.num_submits for one in found} == {5}, "what was taken since is said by the next message"
    assert [thread is threading.current_thread() for thread in threads] == [is_on_loop]
    assert (len(found) == 1) is is_on_loop
