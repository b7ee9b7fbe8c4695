"""A model that is published and added while another one serves: its tokens are those of its folder."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from stratos.common.background import end_tasks
from stratos.engine.settings import RunnerConfig
from stratos.quality.scored_model import ScoredModel
from tests.support.paths import MODELS
from tests.support.waiting import LIMIT_S
from tests.support.worlds.platform_process import PlatformProcess

PROMPT_IDS = [5, 60, 7, 80, 9]
RAW = {"ignore_eos": True, "return_token_ids": True}
NUM_TOKENS, PAUSE_S = 16, 0.2
"""Load of the neighbour: a stream, and the time between two."""


@pytest.mark.slow
async def test_a_model_that_is_published_under_load_comes_from_the_registry_and_answers_as_from_its_folder(
    real_platform: PlatformProcess,
) -> None:
    admin = ("--key", real_platform.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip())
    client = openai.AsyncOpenAI(base_url=real_platform.base_url, api_key=real_platform.api_key, timeout=LIMIT_S)
    ask: dict[str, Any] = {"prompt": PROMPT_IDS, "temperature": 0, "extra_body": RAW}
    streamed: list[tuple[int, ...]] = []

    async def stream() -> None:
        """One after the other, until all is done."""
        while True:
            parts = await client.completions.create(model="base", max_tokens=NUM_TOKENS, stream=True, **ask)
            tokens = [token async for part in parts for c in part.choices for token in c.model_extra["token_ids"]]
            streamed.append(tuple(tokens))
            await asyncio.sleep(PAUSE_S)

    streaming = asyncio.create_task(stream())
    published = await asyncio.to_thread(
        real_platform.stratos, "models", "publish", "draft", "--path", str(MODELS / "draft"), *admin
    )
    assert "29 tensors, computed token" in published.stdout + published.stderr
    reference = published.stdout.splitlines()[-1]
    added = await asyncio.to_thread(
        real_platform.stratos, "models", "add", "draft", reference, "--wait-s", "100", *admin
    )
    assert "draft is served" in added.stdout
    found = await client.completions.create(model="draft", max_tokens=16, **ask)
    model = ScoredModel.load(RunnerConfig(model_path=MODELS / "draft", max_model_len=512), 64)
    assert found.choices[0].model_extra["token_ids"] == model.complete([PROMPT_IDS], 16)[0]
    [row] = json.loads(real_platform.stratos("models", "show", "draft", *admin).stdout)
    assert (row["source"], row["ready"], row["facts"]["num_layers"]) == (reference, "2/2", 3)
    await end_tasks([streaming])
    assert len(streamed) > 2
    assert {len(tokens) for tokens in streamed} == {NUM_TOKENS}
    assert len(set(streamed)) == 1  # what came and went beside it changed no token
    cached = real_platform.data_dir / "models" / f"{row['digest']}-{row['text_digest'][:16]}"
    assert (cached / "model.safetensors").stat().st_size == (MODELS / "draft/model.safetensors").stat().st_size
    served = real_platform.stratos("models", "unpublish", reference, *admin, check=False)
    assert (served.returncode, "is served as 'draft'" in served.stderr) == (1, True), served.stderr
    real_platform.stratos("models", "remove", "draft", *admin)
    assert real_platform.stratos("models", "unpublish", reference, *admin).stdout.strip() == reference
    assert real_platform.stratos("models", "sweep", *admin).stdout.startswith("0 chunks deleted"), "they are young"
    assert not real_platform.stratos("models", "sweep", "--min-age-s", "0", *admin).stdout.startswith("0 chunks")
    await client.close()
