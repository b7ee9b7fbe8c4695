"""Children of asyncio that nothing waits for: the test that leaves them is blamed, and the fake cluster leaves none."""

import asyncio
import sys
import threading
from contextlib import AsyncExitStack

import aiohttp
import psutil

from tests.support.fakes.kubernetes_pods import PODS, fake_pods
from tests.support.left_children import children_left

SLEEPS = "import time; print('sleeps', flush=True); time.sleep(600)"


def sleepers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if SLEEPS in child.cmdline()]


def test_a_child_whose_event_loop_has_ended_is_told_once() -> None:
    async def begin() -> asyncio.BaseTransport:
        loop, program = asyncio.get_running_loop(), [sys.executable, "-c", SLEEPS]
        child, _ = await loop.subprocess_exec(
            asyncio.SubprocessProtocol, *program, stdin=None, stdout=None, stderr=None
        )
        return child

    async def run() -> None:
        await (await asyncio.create_subprocess_exec(sys.executable, "-c", "")).wait()

    asyncio.run(run())
    assert children_left() == []
    left = asyncio.run(begin())
    (told,) = children_left()
    assert SLEEPS[:20] in told
    assert children_left() == []
    process = left.get_extra_info("subprocess")
    left.close()
    process.wait()


def test_a_child_that_was_killed_and_not_waited_for_is_told() -> None:
    async def begin() -> asyncio.BaseTransport:
        loop, program = asyncio.get_running_loop(), [sys.executable, "-c", SLEEPS]
        child, _ = await loop.subprocess_exec(
            asyncio.SubprocessProtocol, *program, stdin=None, stdout=None, stderr=None
        )
        child.close()
        return child

    before = set(threading.enumerate())
    process = asyncio.run(begin()).get_extra_info("subprocess")
    for thread in set(threading.enumerate()) - before:
        thread.join()  # asyncio's, which waits for the child, and has no loop to tell
    process.wait()
    (told,) = children_left()
    assert SLEEPS[:20] in told


async def test_a_cluster_that_ends_ends_the_programs_that_it_runs() -> None:
    """They were left where a busy machine was slower than the server's patience with its handlers."""
    query = [("command", word) for word in ("python", "-c", SLEEPS, "{}")]
    async with aiohttp.ClientSession() as client, AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(fake_pods())
        async with client.ws_connect(f"{cluster.url}{PODS}/one/exec", params=query) as socket:
            assert await socket.receive_bytes() == b"\1sleeps\n"
            assert sleepers()
            await stack.aclose()
            assert not sleepers()
