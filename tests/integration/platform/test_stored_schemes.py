"""Platforms on checkpoints of 4-bit and 8-bit formats: hand-off, prefix hits, an adapter, a decode worker that dies."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.paths import MODELS
from tests.support.reference.quantised_models import save_shipped
from tests.support.waiting import wait_until
from tests.support.worlds.platform_process import PlatformProcess, running_platform

PROMPT = "def read_lines(path):\n    with open(path) as file:\n" * 3
NUM_TOKENS = 400
SCHEMES = {"compressed-nvfp4": "nvfp4", "nf4-double": "nf4", "llm-int8": "llm-int8"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_a_checkpoint_is_served_and_a_stream_outlives_its_worker(tmp_path: Path, name: str) -> None:
    folder, size = save_shipped(tmp_path / "base", name), ("--decode", "2", "--max-decode", "2")
    with running_platform(tmp_path, *size, "--model", str(folder)) as platform:
        assert "of them stay quantised" in platform.output
        client = openai.OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=120)
        assert {model.model_extra["quantization"] for model in client.models.list().data} == {SCHEMES[name]}
        expected, request_id = streamed(client)
        assert len(expected) == NUM_TOKENS
        assert streamed(client)[0] == expected, "the prompt is cached now"
        platform.stratos("adapters", "register", "unit-tests", str(MODELS / "adapters" / "unit-tests"))
        wait_until(lambda: "unit-tests" in {model.id for model in client.models.list().data}, what="the adapter")
        assert streamed(client, model="unit-tests")[0] != expected
        assert streamed(client, platform)[0] == expected
        receipt = partial(found, platform, f"{platform.base_url}/requests/{request_id}/receipt")
        text = wait_until(receipt, "the receipt, a moment after the answer").text
        assert f"{SCHEMES[name]}.r1" in text
        assert "native-" in text


def streamed(client: openai.OpenAI, dying: PlatformProcess | None = None, model: str = "base") -> tuple[list[int], str]:
    """Token ids of a stream and its request's id; its worker is killed, where ``dying`` is given."""
    extra = {"ignore_eos": True, "return_token_ids": True}
    answer = client.completions.with_raw_response.create(
        model=model, prompt=PROMPT, max_tokens=NUM_TOKENS, temperature=0, stream=True, extra_body=extra
    )
    tokens: list[int] = []
    for chunk in answer.parse():
        tokens += getattr(chunk.choices[0], "token_ids", None) or [] if chunk.choices else []
        if dying is not None and len(tokens) >= 10 and (worker := decoding(dying)):
            os.kill(dying.processes()[worker]["pid"], signal.SIGKILL)
            dying = None
    return (tokens, answer.headers["x-request-id"]) if dying is None else streamed(client, dying, model)


def decoding(platform: PlatformProcess) -> str | None:
    """The worker that runs the one request."""
    running = (w["worker_id"] for w in platform.status()["workers"] if w["role"] == "decode" and w.get("num_running"))
    return next(running, None)


def found(platform: PlatformProcess, url: str) -> httpx.Response | None:
    answer = httpx.get(url, headers={"authorization": f"Bearer {platform.api_key}"}, timeout=60)
    return None if answer.status_code == 404 else answer.raise_for_status()
