"""A call in a thread of its own: result, error, and no thread that stays."""

from __future__ import annotations

import threading

import pytest

from stratos.worker.engine_client.own_thread import run_in_own_thread


async def test_returns_the_result_of_a_thread_that_then_ends() -> None:
    def call(number: int) -> tuple[int, threading.Thread]:
        return number + 1, threading.current_thread()

    number, thread = await run_in_own_thread(call, 1)
    assert number == 2
    assert thread is not threading.current_thread()
    thread.join(timeout=10)
    assert not thread.is_alive()


async def test_raises_what_the_call_raises() -> None:
    def call() -> None:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        await run_in_own_thread(call)
