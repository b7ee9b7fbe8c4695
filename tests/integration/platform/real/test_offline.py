"""One file through a platform's batch and through an offline engine: the same lines, token for token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from stratos.cli.stores import open_records
from stratos.store.records.writer import RecordWriter
from stratos.store.tenancy.tenant_store import TenantStore
from stratos_offline.engines.block_worker import BlockWorker
from stratos_offline.job import Job
from tests.support.paths import BASE_MODEL
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.offline_job import InlinePool, job_options
from tests.support.worlds.platform_process import PlatformProcess

SYSTEM = "You write short programs. " * 8
CHAT: list[dict[str, Any]] = [
    {"max_tokens": 16},
    {"max_tokens": 12, "temperature": 0},
    {"max_tokens": 12, "seed": 5, "n": 2, "top_p": 0.9},
    {"max_tokens": 12, "temperature": "hot"},
    {"max_tokens": 12, "stop": ["e"], "logprobs": True, "top_logprobs": 2},
    {"max_tokens": 24, "response_format": {"type": "json_object"}},
    {"max_tokens": 8, "frequency_penalty": 0.5, "user": "someone"},
]


def lines(url: str) -> list[dict[str, Any]]:
    if url == "/v1/embeddings":
        bodies = [{"input": "go"}, {"input": ["one", "two"], "encoding_format": "base64"}, {"input": 5.5}]
    elif url == "/v1/completions":
        bodies = [{"prompt": ["def ", "class "], **more} for more in CHAT[:4]]
    else:
        message = [{"role": "system", "content": SYSTEM}]
        bodies = [{"messages": [*message, {"role": "user", "content": f"{n}"}], **m} for n, m in enumerate(CHAT)]
    head = {"method": "POST", "url": url}
    return [{"custom_id": f"c{n}", **head, "body": {"model": "base", **body}} for n, body in enumerate(bodies)]


@asynccontextmanager
async def client_of(platform: PlatformProcess) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {platform.api_key}"}
    async with httpx.AsyncClient(base_url=platform.base_url, headers=headers, timeout=LIMIT_S, trust_env=False) as http:
        yield http


async def batch_of(http: httpx.AsyncClient, content: bytes, url: str) -> tuple[dict[str, Any], list[list[Any]]]:
    """The batch, and the rows of both of its files."""
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
    file = (await http.post("/files", **form)).json()["id"]
    asked = {"input_file_id": file, "endpoint": url, "completion_window": "24h"}
    batch_id = (await http.post("/batches", json=asked)).json()["id"]

    async def has_ended() -> bool:
        return (await http.get(f"/batches/{batch_id}")).json()["status"] == "completed"

    await eventually(has_ended, "the batch is completed", poll_s=0.05)
    batch = (await http.get(f"/batches/{batch_id}")).json()
    found = [batch[name] for name in ("output_file_id", "error_file_id")]
    texts = [(await http.get(f"/files/{name}/content")).content if name else b"" for name in found]
    return batch, [[scrubbed(orjson.loads(row)) for row in text.splitlines()] for text in texts]


async def salt_of(platform: PlatformProcess) -> str:
    async with open_records(platform.facts()["redis_url"]) as records:
        return (await TenantStore(RecordWriter(records, actor="test")).get("default")).cache_salt.hex()


def scrubbed(row: dict[str, Any]) -> dict[str, Any]:
    """Without how much of a prompt was cached, which depends on what was computed before."""
    if isinstance(usage := row["response"]["body"].get("usage"), dict):
        usage.pop("prompt_tokens_details", None)
    return row


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
async def test_the_results_are_those_of_the_platform(real_platform: PlatformProcess, tmp_path: Path, url: str) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in lines(url)))
    async with client_of(real_platform) as http:
        batch, (answers, errors) = await batch_of(http, path.read_bytes(), url)
    assert len(answers) >= 2
    assert errors
    engine = {"engine": "torch", "model_path": str(BASE_MODEL), "kv_pool_bytes": 64 << 20}
    names = {"name": batch["id"], "salt": await salt_of(real_platform)}
    options = job_options(path, out, block_lines=3, engine=engine, **names)
    job = Job(options, lambda ask, end: InlinePool(BlockWorker(ask, end)), batch["created_at"])
    await asyncio.to_thread(job.run)
    for name, wanted in (("output.jsonl", answers), ("errors.jsonl", errors)):
        found = [scrubbed(orjson.loads(row)) for row in (out / name).read_bytes().splitlines()]
        assert found == wanted
