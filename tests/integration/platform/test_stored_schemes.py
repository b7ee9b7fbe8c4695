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
from tests.support.reference.gguf_models import save_shipped_gguf
from tests.support.reference.quantised_models import save_shipped
from tests.support.waiting import LIMIT_S, rounds, wait_until
from tests.support.worlds.platform_process import PlatformProcess, running_platform

PROMPT = "def read_lines(path):\n    with open(path) as file:\n" * 3
NUM_TOKENS = 400
ORDINARY = "compressed-int4"
SCHEMES = {
    ORDINARY: "int4.r1",
    "compressed-w8a8": "int8-rows.r1",
    "compressed-fp8": "fp8.r1",
    "compressed-mxfp4": "mxfp4.r1",
    "compressed-nvfp4": "nvfp4.r1",
    "gptq-order": "int4.r1",
    "awq": "int4.r1",
    "fp8-block": "fp8.r1",
    "nf4-double": "nf4.r1",
    "llm-int8": "llm-int8.r1",
    "base-Q8_0.gguf": "gguf-q8_0.r2",
    "base-Q4_K_M.gguf": "gguf-q4_k+q6_k+q8_0.r2",
}
"""Format, or name of a GGUF file -> how receipts name scheme and revision of its kernels."""


@pytest.mark.parametrize(
    "name", [ORDINARY, *(pytest.param(n, marks=pytest.mark.slow) for n in SCHEMES if n != ORDINARY)]
)
def test_a_checkpoint_is_served_and_a_stream_outlives_its_worker(tmp_path: Path, name: str) -> None:
    is_file, size = name.endswith(".gguf"), ("--decode", "2", "--max-decode", "2")
    model = save_shipped_gguf(tmp_path / name) if is_file else save_shipped(tmp_path / "base", name)
    scheme, adapters = SCHEMES[name].rpartition(".")[0], str(MODELS / "adapters" / "unit-tests")
    with running_platform(tmp_path, *size, "--model", str(model)) as platform:
        assert "of them stay quantised" in platform.output
        client = openai.OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=LIMIT_S)
        (card,) = client.models.list().data
        assert (card.id, card.model_extra["quantization"]) == (model.stem, scheme)
        expected, request_id = streamed(client, card.id)
        assert len(expected) == NUM_TOKENS
        assert streamed(client, card.id)[0] == expected, "the prompt is cached now"
        platform.stratos("adapters", "register", "unit-tests", adapters)
        wait_until(lambda: "unit-tests" in {model.id for model in client.models.list().data}, what="the adapter")
        assert streamed(client, "unit-tests")[0] != expected
        for _ in rounds("a worker seen under a stream"):  # on a busy machine it may be over before
            tokens, of_killed = streamed(client, card.id, platform)
            assert tokens == expected
            if of_killed:
                break
        receipt = partial(found, platform, f"{platform.base_url}/requests/{request_id}/receipt")
        text = wait_until(receipt, "the receipt, a moment after the answer").text
        assert SCHEMES[name] in text
        assert "native-" in text


def streamed(client: openai.OpenAI, model: str, dying: PlatformProcess | None = None) -> tuple[list[int], str]:
    """Token ids of a stream and its request's id; "" where its worker was to be killed, and was not seen in time."""
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
    return tokens, answer.headers["x-request-id"] if dying is None else ""


def decoding(platform: PlatformProcess) -> str | None:
    """The worker that runs the one request."""
    running = (w["worker_id"] for w in platform.status()["workers"] if w["role"] == "decode" and w.get("num_running"))
    return next(running, None)


def found(platform: PlatformProcess, url: str) -> httpx.Response | None:
    answer = httpx.get(url, headers={"authorization": f"Bearer {platform.api_key}"}, timeout=LIMIT_S)
    return None if answer.status_code == 404 else answer.raise_for_status()
