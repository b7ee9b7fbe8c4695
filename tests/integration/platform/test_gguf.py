"""A platform on a GGUF file: hand-off, prefix hits, chat by the template of the file, the list of models."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.reference.gguf_models import save_shipped_gguf
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import running_platform

PROMPT = "def read_lines(path):\n    with open(path) as file:\n" * 3


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scheme"), [("base-Q4_K_M", "gguf-q4_k+q6_k+q8_0"), ("base-Q8_0", "gguf-q8_0")])
def test_a_gguf_file_is_served(tmp_path: Path, name: str, scheme: str) -> None:
    path = save_shipped_gguf(tmp_path / f"{name}.gguf")
    with running_platform(tmp_path, "--max-decode", "1", "--model", str(path)) as platform:
        assert "of them stay quantised" in platform.output
        client = openai.OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=LIMIT_S)
        (model,) = client.models.list().data
        assert (model.id, model.model_extra["quantization"]) == (name, scheme)
        texts, request_ids = [], []
        for _ in range(2):
            answer = client.completions.with_raw_response.create(
                model=model.id, prompt=PROMPT, max_tokens=24, temperature=0
            )
            texts.append(answer.parse().choices[0].text)
            request_ids.append(answer.headers["x-request-id"])
        assert texts[0]
        assert texts[0] == texts[1]
        chat = client.chat.completions.create(
            model=model.id, messages=[{"role": "user", "content": "hello"}], max_tokens=8
        )
        assert chat.usage is not None
        assert chat.usage.completion_tokens > 0
        url = f"{platform.base_url}/requests/{request_ids[0]}/receipt"
        receipt = wait_until(partial(_found, url, platform.api_key), "the receipt, a moment after the answer")
        assert f"{scheme}.r2" in receipt.text


def _found(url: str, api_key: str) -> httpx.Response | None:
    answer = httpx.get(url, headers={"authorization": f"Bearer {api_key}"}, timeout=LIMIT_S)
    return None if answer.status_code == 404 else answer.raise_for_status()
