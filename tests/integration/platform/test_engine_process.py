"""`stratos up` with engines in processes of their own: the same answers, also after an engine was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import openai
import psutil

from tests.support.promises import Promised
from tests.support.waiting import wait_until
from tests.support.worlds.platform_process import PlatformProcess, gone, running_platform

ENV = {
    "STRATOS_DECODE_WORKER_ENGINE_PROCESS": "process",
    "STRATOS_PREFILL_WORKER_ENGINE_PROCESS": "process",
    "STRATOS_DECODE_WORKER_FAKE__OVERLAP": "true",
    "STRATOS_DECODE_WORKER_FAKE__STEP_S": "0.02",
}
PROMPT = "the quick brown fox jumps over the lazy dog and runs away from here, as foxes do"
NUM_TOKENS = 150
LEAST_S = 0.5
ENDED_WITHIN_S = 10.0
"""3 s are promised for a hang; the rest of the stream takes as long again."""


def engines(platform: PlatformProcess) -> dict[int, int]:
    """Engine processes by the worker that started them."""
    found = {}
    for child in psutil.Process(platform.popen.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a killed one's worker ends while it is looked at
            if any("engine_client.child" in argument for argument in child.cmdline()):
                found[child.ppid()] = child.pid
    return found


def test_engines_in_their_own_processes_serve_and_one_that_is_killed_or_hangs_costs_no_token(
    tmp_path: Path, promised: Promised
) -> None:
    with running_platform(tmp_path, "--engine", "fake", "--decode", "2", "--max-decode", "2", env=ENV) as platform:
        children = engines(platform)
        assert len(children) == 3
        client = openai.OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=60)
        fields = {
            "model": "base",
            "prompt": PROMPT,
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "extra_body": {"ignore_eos": True, "return_token_ids": True},
        }
        whole = client.completions.create(**fields).choices[0].token_ids
        assert len(whole) == NUM_TOKENS
        got: list[int] = []
        killed = None
        for chunk in client.completions.create(stream=True, **fields):
            got += chunk.choices[0].token_ids or []
            if killed is None and len(got) >= 5:
                killed = wait_until(lambda: decoding(platform, children), what="a running request")
                os.kill(killed, signal.SIGKILL)
        assert got == whole
        assert killed is not None
        wait_until(
            lambda: len(engines(platform)) == 3 and killed not in engines(platform).values(), what="a new engine"
        )
        children = engines(platform)
        got, stopped = [], None
        stream = iter(client.completions.create(stream=True, **fields))
        while len(got) < 5:
            got += next(stream).choices[0].token_ids or []
        stopped = wait_until(lambda: decoding(platform, children), what="a running request")
        began_s = time.monotonic()
        with promised("a stream, from the hang of its engine to its end", ENDED_WITHIN_S):
            os.kill(stopped, signal.SIGSTOP)
            for chunk in stream:
                got += chunk.choices[0].token_ids or []
        assert got == whole
        assert time.monotonic() - began_s > LEAST_S, "control: it stood still"
        os.kill(stopped, signal.SIGCONT)
        left = [psutil.Process(pid) for pid in engines(platform).values()]
    wait_until(lambda: gone(left), what="the end of the engine processes")


def decoding(platform: PlatformProcess, children: dict[int, int]) -> int | None:
    """The engine that runs the one request."""
    pids = {p["name"]: p["pid"] for p in platform.status()["processes"]}
    for worker in platform.status()["workers"]:
        if worker["num_running"]:
            return children[pids[worker["worker_id"]]]
    return None
