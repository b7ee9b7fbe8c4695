"""The only decode worker of `stratos up` stands still for a while: no stream is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.waiting import wait_until
from tests.support.worlds.platform_process import PlatformProcess, running_platform

STEP_S, NUM_STREAMS, NUM_TOKENS = 0.02, 6, 80
STANDSTILL_S = 2.0
"""Longer than gateway and router wait for a sign of life."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    env = {"STRATOS_DECODE_WORKER_FAKE__STEP_S": str(STEP_S)}
    folder: Path = tmp_path_factory.mktemp("platform")
    with running_platform(folder, "--engine", "fake", "--decode", "1", "--max-decode", "1", env=env) as running:
        yield running


def run_stream(platform: PlatformProcess, prompt: str, counts: dict[str, int]) -> list[int]:
    """Token ids of one stream; ``counts`` follows it."""
    client = OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=60)
    ids: list[int] = []
    with client.completions.create(
        model="base", prompt=prompt, max_tokens=NUM_TOKENS, temperature=0, stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    ) as stream:  # fmt: skip
        for chunk in stream:
            ids += chunk.choices[0].model_dump()["token_ids"] if chunk.choices else []
            counts[prompt] = len(ids)
    return ids


def test_a_standstill_of_the_only_decode_worker_costs_no_stream(platform: PlatformProcess) -> None:
    prompts = [f"stream {number} of several" for number in range(NUM_STREAMS)]
    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        expected = list(threads.map(lambda prompt: run_stream(platform, prompt, {}), prompts))
        counts: dict[str, int] = {}
        running = [threads.submit(run_stream, platform, prompt, counts) for prompt in prompts]
        wait_until(lambda: len(counts) == NUM_STREAMS and min(counts.values()) > 10, "all streams flow")
        pid = platform.processes()["decode-0"]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(STANDSTILL_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert max(counts.values()) < NUM_TOKENS, "the streams were under way"
        assert [stream.result() for stream in running] == expected
    logs = "".join(path.read_text() for path in platform.run_dir().rglob("gateway*.log"))
    assert "is lost: silent" in logs, "the standstill was noticed"
