"""A tiny model of any family on a platform: added, asked twice, compared with one runner, removed."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from stratos.core.files.model_files import read_model_files
from stratos.engine.settings import RunnerConfig
from stratos.quality.scored_model import ScoredModel
from tests.support.paths import BASE_MODEL
from tests.support.reference.shipped_model import VOCAB_SIZE
from tests.support.reference.tiny_models import FAMILIES, save_tiny
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import PlatformProcess

CONTEXT = 512
PROMPT = [(i * 37 + 11) % 4000 + 5 for i in range(200)]
NUM_CACHED = 192
"""Of it: whole blocks."""
NUM_TOKENS = 24
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def save_served(folder: Path, case: str) -> Path:
    """Write a case of ``FAMILIES`` with the words of the shipped model; returns its folder."""
    prefix, changes = FAMILIES[case]
    save_tiny(folder, prefix, **changes, vocab_size=VOCAB_SIZE, max_position_embeddings=CONTEXT)
    for name in TEXT_FILES:
        shutil.copy(BASE_MODEL / name, folder)
    return folder


def local_tokens(folder: Path, prompt: list[int], num_tokens: int, context: int = CONTEXT) -> list[int]:
    """Greedy tokens of one runner, with the settings that workers have."""
    model = ScoredModel.load(RunnerConfig(model_path=folder, max_model_len=context), len(prompt) + num_tokens)
    return model.complete([prompt], num_tokens)[0]


def check_added(
    platform: PlatformProcess,
    folder: Path,
    name: str,
    admin_key: str,
    num_workers: int,
    num_cached: int = NUM_CACHED,
) -> None:
    """Add a model, and compare its first answer (from a hand-off) and its second (from cached KV) with one runner.

    Args:
        platform: runs already.
        folder: of the model.
        name: that it gets.
        admin_key: of an admin.
        num_workers: that the platform starts for it, all of which are waited for.
        num_cached: tokens that the decode worker has of the second prompt.
    """
    platform.stratos("models", "add", name, str(folder), "--wait-s", str(LIMIT_S), "--key", admin_key)
    digest = read_model_files(folder).digest
    wait_until(lambda: _num_live(platform, digest) == num_workers, "all workers of the model")
    (tokens, first), (again, second) = (answered(platform, name, PROMPT, NUM_TOKENS) for _ in range(2))
    platform.stratos("models", "remove", name, "--key", admin_key)
    assert len(tokens) == NUM_TOKENS
    assert tokens == again == local_tokens(folder, PROMPT, NUM_TOKENS)
    assert (first["prefill_path"], first["transferred_tokens"] > 0) == ("handoff", True), first
    assert second["prefix_match_tokens"] == num_cached, second


def answered(
    platform: PlatformProcess, name: str, prompt: list[int], num_tokens: int
) -> tuple[list[int], dict[str, Any]]:
    """Greedy tokens of a prompt, and what the receipt says of its KV."""
    body = {
        "model": name, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip
    headers = {"authorization": f"Bearer {platform.api_key}"}
    with httpx.Client(base_url=platform.base_url, headers=headers, timeout=None, trust_env=False) as client:
        answer = client.post("/completions", json=body)
        assert answer.status_code == 200, answer.text
        url = f"/requests/{answer.headers['x-request-id']}/receipt"
        receipt = wait_until(partial(_found, client, url), "the receipt, a moment after the answer")
    return answer.json()["choices"][0]["token_ids"], receipt["generations"][0]


def _num_live(platform: PlatformProcess, digest: str) -> int:
    """Workers of an added model to which its router sends requests."""
    workers = platform.status()["workers"]
    return sum(worker["is_live"] and f"-{digest[:8]}-" in worker["worker_id"] for worker in workers)


def _found(client: httpx.Client, url: str) -> dict[str, Any] | None:
    answer = client.get(url)
    return None if answer.status_code == 404 else dict(answer.raise_for_status().json())
