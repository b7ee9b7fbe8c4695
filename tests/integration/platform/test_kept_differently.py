"""Latent attention and recurrent states through a platform: a hand-off, the same prompt again, a killed worker."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.support.waiting import LIMIT_S, rounds
from tests.support.worlds.family_models import CONTEXT, PROMPT, local_tokens, save_served
from tests.support.worlds.platform_process import PlatformProcess, running_platform

NUM_TOKENS = 250


@pytest.mark.slow
@pytest.mark.parametrize("case", ["deepseek-v3", "qwen3.5"])
def test_a_stream_outlives_its_worker(tmp_path: Path, case: str) -> None:
    folder = save_served(tmp_path / "kept", case)
    size = ("--engine", "torch", "--prefill", "1", "--decode", "2", "--max-decode", "2", "--model", str(folder))
    with running_platform(tmp_path, *size) as platform:
        expected, _ = streamed(platform)
        assert expected == local_tokens(folder, PROMPT, NUM_TOKENS, CONTEXT)
        assert streamed(platform)[0] == expected, "the prompt is cached now"
        for _ in rounds("a worker that is killed while it decodes"):
            tokens, was_killed = streamed(platform, is_killed=True)
            assert tokens == expected
            if was_killed:
                break


def streamed(platform: PlatformProcess, *, is_killed: bool = False) -> tuple[list[int], bool]:
    """Greedy tokens of the prompt.

    Args:
        platform: computes them.
        is_killed: the worker that does so ends on the way, where it is seen before the stream ends.

    Returns:
        The tokens, and whether a worker was killed.
    """
    body = {
        "model": "kept", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, "stream": True,
    }  # fmt: skip
    headers, tokens = {"authorization": f"Bearer {platform.api_key}"}, list[int]()
    was_killed, is_due = False, is_killed
    with (
        httpx.Client(base_url=platform.base_url, headers=headers, timeout=LIMIT_S, trust_env=False) as client,
        client.stream("POST", "/completions", json=body) as answer,
    ):
        for event in answer.iter_lines():
            if event.startswith("data: {"):
                for choice in json.loads(event.removeprefix("data: "))["choices"]:
                    tokens += choice.get("token_ids") or []
            if is_due and len(tokens) >= 10:  # once: on a busy machine a look takes as long as the stream
                was_killed, is_due = killed(platform), False
    return tokens, was_killed


def killed(platform: PlatformProcess) -> bool:
    """Whether the decode worker that runs the one request was found, and killed."""
    for worker in platform.status()["workers"]:
        if worker["role"] == "decode" and worker.get("num_running"):
            os.kill(platform.processes()[worker["worker_id"]]["pid"], signal.SIGKILL)
            return True
    return False
