"""Threads that encode beside an event loop: what their callers get, and when they begin and end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable

import pytest

from stratos.text.encoding_threads import EncodingThreads


def blocked(num: int) -> tuple[threading.Event, list[threading.Event], list[Callable[[], str]]]:
    """Works that stand still until the first result is set, and what each sets as it begins."""
    may_go, begun = threading.Event(), [threading.Event() for _ in range(num)]

    def work(number: int) -> str:
        begun[number].set()
        may_go.wait(30.0)
        return threading.current_thread().name

    return may_go, begun, [lambda number=number: work(number) for number in range(num)]  # type: ignore[misc]


async def test_a_result_and_an_error_are_those_of_the_work_and_another_thread_does_it() -> None:
    threads = EncodingThreads(1)
    assert await threads.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert await threads.run(lambda: [1, 2]) == [1, 2]


async def test_as_many_works_as_there_may_be_threads_go_on_at_once() -> None:
    threads = EncodingThreads(2)
    may_go, begun, works = blocked(3)
    futures = [threads.run(work) for work in works]
    assert await asyncio.to_thread(begun[0].wait, 30.0)
    assert await asyncio.to_thread(begun[1].wait, 30.0)
    assert not begun[2].is_set()
    may_go.set()
    assert len(await asyncio.gather(*futures)) == 3


async def test_one_thread_is_enough_for_one_text_after_the_other() -> None:
    threads = EncodingThreads(8)
    assert len({await threads.run(threading.get_ident) for _ in range(5)}) == 1


async def test_what_is_cancelled_before_its_turn_is_not_done() -> None:
    threads = EncodingThreads(1)
    may_go, begun, works = blocked(2)
    first, second = (threads.run(work) for work in works)
    assert await asyncio.to_thread(begun[0].wait, 30.0)
    second.cancel()
    may_go.set()
    await first
    assert await threads.run(lambda: "next") == "next"
    assert not begun[1].is_set()


async def test_threads_end_with_their_owner() -> None:
    threads = EncodingThreads(1)
    thread = await threads.run(threading.current_thread)
    del threads
    gc.collect()
    await asyncio.to_thread(thread.join, 30.0)
    assert not thread.is_alive()
