"""A platform that quantises the shipped model at load, and its KV: prompts, hand-off, prefix hits, receipts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import httpx
import openai

from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import running_platform

PROMPT = "def read_lines(path):\n    with open(path) as file:\n" * 3


def test_a_quantised_model_serves_and_says_so(tmp_path: Path) -> None:
    with running_platform(
        tmp_path, "--max-decode", "1", "--quantization", "int8", "--kv-cache-dtype", "int8"
    ) as platform:
        assert "of them stay quantised" in platform.output
        client = openai.OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=LIMIT_S)
        schemes = {model.id: model.model_extra["quantization"] for model in client.models.list().data}
        assert set(schemes.values()) == {"int8-rows-at-load"}

        def ask(model: str, max_tokens: int) -> str:
            answer = client.completions.with_raw_response.create(
                model=model, prompt=PROMPT, max_tokens=max_tokens, temperature=0
            )
            request_ids.append(answer.headers["x-request-id"])
            return answer.parse().choices[0].text

        request_ids: list[str] = []
        first = ask("base", 24)
        assert first
        assert ask("base", 24) == first
        assert ask("unit-tests", 24)
        url, headers = f"{platform.base_url}/requests", {"authorization": f"Bearer {platform.api_key}"}
        for request_id in request_ids:
            receipt = wait_until(
                partial(_found, f"{url}/{request_id}/receipt", headers), "the receipt, a moment after the answer"
            )
            assert "int8-rows-at-load.r1" in receipt.text
            assert "kv-int8.r1" in receipt.text


def _found(url: str, headers: dict[str, str]) -> httpx.Response | None:
    answer = httpx.get(url, headers=headers, timeout=LIMIT_S)
    return None if answer.status_code == 404 else answer.raise_for_status()
