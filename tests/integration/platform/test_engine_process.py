"""`stratos up` with engines in processes of their own: one that is killed or hangs costs no token of a stream."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.support.promises import KEY, Promised
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import PlatformProcess, gone, running_platform

ENV = {"STRATOS_DECODE_WORKER_ENGINE_PROCESS": "process", "STRATOS_DECODE_WORKER_FAKE__STEP_S": "0.02"}
ARGUMENTS = ("--engine", "fake", "--decode", "2", "--max-decode", "2")
NUM_TOKENS = 100
FIELDS: dict[str, Any] = {
    "model": "base",
    "prompt": "the quick brown fox jumps over the lazy dog and runs away from here, as foxes do",
    "max_tokens": NUM_TOKENS,
    "temperature": 0,
    "extra_body": {"ignore_eos": True, "return_token_ids": True},
}
ENDED_WITHIN_S = 10.0
"""3 s are promised for a hang; the rest of the stream takes about as long again."""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[PlatformProcess]:
    with running_platform(tmp_path, *ARGUMENTS, env=ENV) as running:
        yield running


def engines(platform: PlatformProcess) -> dict[int, int]:
    """Engine processes by the worker that started them."""
    found = {}
    for child in psutil.Process(platform.popen.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a killed one's worker ends while it is looked at
            if any("engine_client.child" in argument for argument in child.cmdline()):
                found[child.ppid()] = child.pid
    return found


def decoding(platform: PlatformProcess, children: dict[int, int]) -> int | None:
    """The engine that runs the one request."""
    pids = {p["name"]: p["pid"] for p in platform.status()["processes"]}
    for worker in platform.status()["workers"]:
        if worker.get("num_running"):
            return children[pids[worker["worker_id"]]]
    return None


def streamed(platform: PlatformProcess, disturb: Callable[[int], None] | None = None) -> list[int]:
    """Token ids of a stream whose engine is disturbed once it has begun; of the next one where it was over before."""
    children = engines(platform)
    client = openai.OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=LIMIT_S)
    got: list[int] = []
    for chunk in client.completions.create(stream=True, **FIELDS):
        got += chunk.choices[0].token_ids or []
        if disturb is not None and len(got) >= 5 and (engine := decoding(platform, children)) is not None:
            disturb(engine)
            disturb = None
    return got if disturb is None else streamed(platform, disturb)


def test_an_engine_that_is_killed_costs_no_token_and_is_replaced(platform: PlatformProcess) -> None:
    assert len(engines(platform)) == 2
    killed: list[int] = []

    def kill(pid: int) -> None:
        killed.append(pid)
        os.kill(pid, signal.SIGKILL)

    broken, whole = streamed(platform, kill), streamed(platform)
    assert killed
    assert broken == whole
    assert len(whole) == NUM_TOKENS
    wait_until(lambda: len(set(engines(platform).values()) - set(killed)) == 2, what="a new engine")
    left = [psutil.Process(pid) for pid in engines(platform).values()]
    platform.stop()
    wait_until(lambda: gone(left), what="the end of the engine processes")


@pytest.mark.promise
@pytest.mark.parametrize("promised", [KEY], indirect=True)  # the order of events is that of a gateway's recovery
def test_an_engine_that_hangs_costs_no_token(platform: PlatformProcess, promised: Promised) -> None:
    stopped: list[int] = []
    with ExitStack() as stack:

        def stop(pid: int) -> None:
            stopped.append(pid)
            stack.enter_context(promised("a stream, from the hang of its engine to its end", ENDED_WITHIN_S))
            os.kill(pid, signal.SIGSTOP)

        broken = streamed(platform, stop)
    assert broken == streamed(platform)
    os.kill(stopped[0], signal.SIGCONT)
