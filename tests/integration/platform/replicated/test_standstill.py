"""Every decode worker of `stratos up` stands still for a while: no stream is lost."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from openai import OpenAI

from tests.support.waiting import LIMIT_S, rounds, wait_until
from tests.support.worlds.platform_process import PlatformProcess

NUM_STREAMS, NUM_TOKENS = 6, 300
STANDSTILL_S = 2.0
"""Longer than gateway and router wait for a sign of life."""


def run_stream(platform: PlatformProcess, prompt: str, counts: dict[str, int]) -> list[int]:
    """Token ids of one stream; ``counts`` follows it."""
    client = OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=LIMIT_S)
    ids: list[int] = []
    with client.completions.create(
        model="base", prompt=prompt, max_tokens=NUM_TOKENS, temperature=0, stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    ) as stream:  # fmt: skip
        for chunk in stream:
            ids += chunk.choices[0].model_dump()["token_ids"] if chunk.choices else []
            counts[prompt] = len(ids)
    return ids


def num_noticed(platform: PlatformProcess) -> int:
    """How often gateways wrote that a worker is silent."""
    return sum(path.read_text().count("is lost: silent") for path in platform.run_dir().rglob("gateway*.log"))


def all_flow(counts: dict[str, int]) -> bool:
    return len(counts) == NUM_STREAMS and min(counts.values()) > 10


@pytest.mark.slow
def test_a_standstill_of_every_decode_worker_costs_no_stream(platform: PlatformProcess) -> None:
    prompts = [f"stream {number} of several" for number in range(NUM_STREAMS)]
    pids = [process["pid"] for name, process in platform.processes().items() if name.startswith("decode")]
    before = num_noticed(platform)
    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        expected = list(threads.map(lambda prompt: run_stream(platform, prompt, {}), prompts))
        for _ in rounds("all streams under way at once"):  # on a busy machine some are over before the last begins
            counts: dict[str, int] = {}
            running = [threads.submit(run_stream, platform, prompt, counts) for prompt in prompts]
            wait_until(partial(all_flow, counts), "all streams flow")
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(STANDSTILL_S)
                were_under_way = max(counts.values()) < NUM_TOKENS
                if were_under_way:
                    wait_until(lambda: num_noticed(platform) > before, "a gateway notices")
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
            assert [stream.result() for stream in running] == expected
            if were_under_way:
                break
    wait_until(lambda: {w["is_live"] for w in platform.status()["workers"]} == {True}, "all workers are back")
