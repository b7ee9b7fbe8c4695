"""Texts of a tenant in every field that takes one, at real processes: what is kept of them is sealed.

Redis, the object store, workers' KV on disk, spools, copies and logs are searched while a stream is open, and once all
has ended.  What is kept in clear by design is ``IN_CLEAR``, as the table of docs/tenants.md#data-keys has it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.support.paths import SHIPPED_ADAPTERS
from tests.support.servers.planted_text import has_one, id_forms, kept_by, text_forms
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.platform_process import MTLS, PlatformProcess, running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SIZE = ("--gateways", "2", "--prefill", "1", "--decode", "1", "--max-decode", "1", "--kv-disk", "1")
ENV = {
    "STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES": str(64 * 16 * 6144),
    "STRATOS_DECODE_WORKER_SCHEDULER__SWITCHES__SWAP_COSTS": "false",
    "STRATOS_GATEWAY_LEDGER__SEAL_INTERVAL_S": "1",
    "STRATOS_GATEWAY_LEDGER__SEAL_POLL_S": "0.2",
    "STRATOS_GATEWAY_STREAMS__CALL_S": "30",
}
PLACES = (
    "prompt", "cached", "system", "chat", "tool", "schema", "stop", "user", "session", "note", "input",
    "stored note", "background", "message", "embedding", "streamed", "file name", "custom id", "line", "batch note",
    "key of a stream", "adapted", "spooled",
)  # fmt: skip
SEALED = {name: f"zebracorn-{number:02}-marmalade-{name.replace(' ', '-')}" for number, name in enumerate(PLACES)}
"""By the field that has it."""
PROMPT_IDS = [301 + 7 * place % 640 for place in range(120)]
CLEAR_PLACES = (
    "cost tag", "request id", "name of a key", "prompt template", "word of a policy", "name of an adapter",
    "config of an adapter",
)  # fmt: skip
IN_CLEAR = {name: f"kumquat-{number:02}-in-clear" for number, name in enumerate(CLEAR_PLACES)}
DECLARED: dict[str, Any] = {
    "policies": {"words": {"words": {"w": [IN_CLEAR["word of a policy"]]}, "replacement": "[cut]"}},
    "templates": {"keeper/bird": {"versions": {1: {"text": IN_CLEAR["prompt template"] + " {{ bird }}"}}}},
    "plans": {"open": {"priority_class": 2}},
    "tenants": {"keeper": {"plan": "open", "overrides": {"response_cache": True}}},
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    flags = (*SIZE, *MTLS, "--log-level", "debug")
    with running_platform(tmp_path_factory.mktemp("platform"), *flags, env=ENV) as running:
        yield running


def long(name: str) -> str:
    """A text of metadata that no entry of the ledger keeps: one of at most 64 characters is a cost tag."""
    return SEALED[name] + "." * 64


def prompt_ids(kind: int) -> list[int]:
    return [*PROMPT_IDS, *((kind * 31 + place * (kind + 3)) % 907 + 1 for place in range(280))]


def schema() -> dict[str, Any]:
    """An answer can say nothing but the planted text."""
    said = {"type": "object", "properties": {"said": {"enum": [SEALED["schema"]]}}, "required": ["said"]}
    return {"type": "json_schema", "json_schema": {"name": "said", "schema": said}}


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("completions", {"prompt": SEALED["prompt"] * 12, "stop": [SEALED["stop"]], "user": SEALED["user"]}),
    *(("completions", {"prompt": prompt_ids(kind)}) for kind in range(6)),
    *(("completions", {"prompt": SEALED["cached"], "temperature": 0}) for _ in range(2)),
    ("completions", {"prompt": SEALED["adapted"], "model": IN_CLEAR["name of an adapter"]}),
    ("chat/completions", {
        "messages": [{"role": "system", "content": SEALED["system"]}, {"role": "user", "content": SEALED["chat"]}],
        "response_format": schema(), "max_tokens": 200,
        "metadata": {"team": IN_CLEAR["cost tag"], "note": long("note")},
    }),
    ("responses", {"input": SEALED["input"], "store": True, "metadata": {"note": long("stored note")}}),
    ("messages", {
        "messages": [{"role": "user", "content": SEALED["message"]}], "metadata": {"user_id": SEALED["session"]},
    }),
    ("embeddings", {"input": SEALED["embedding"]}),
]  # fmt: skip
NUM_TOKENS = {"responses": "max_output_tokens", "embeddings": ""}


async def ask(http: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    bound = NUM_TOKENS.get(path, "max_tokens")
    sent = {"model": "base", **({bound: 40} if bound else {}), **body}
    if path == "completions":
        sent |= {"return_token_ids": True, "ignore_eos": True}
    answer = await http.post(f"/{path}", json=sent, headers=headers)
    assert answer.status_code == 200, (path, answer.text)
    return dict(answer.json())


async def run_batch(http: httpx.AsyncClient) -> str:
    """Content of the results of a batch of two lines."""
    body = {"model": "base", "prompt": SEALED["line"], "max_tokens": 40, "ignore_eos": True}
    line = {"method": "POST", "url": "/v1/completions", "body": body}
    rows = (json.dumps({"custom_id": f"{SEALED['custom id']}-{number}", **line}) + "\n" for number in range(2))
    file = {"file": (SEALED["file name"] + ".jsonl", "".join(rows).encode())}
    uploaded = (await http.post("/files", data={"purpose": "batch"}, files=file)).json()["id"]
    terms = {"input_file_id": uploaded, "endpoint": "/v1/completions", "completion_window": "24h"}
    made = (await http.post("/batches", json={**terms, "metadata": {"note": SEALED["batch note"]}})).json()
    told: dict[str, Any] = {}

    async def has_ended() -> bool:
        told.update((await http.get(f"/batches/{made['id']}")).json())
        return told["status"] == "completed"

    await eventually(has_ended, "the batch is completed")
    return (await http.get(f"/files/{told['output_file_id']}/content")).text


async def run_background(http: httpx.AsyncClient) -> str:
    """Text of a response that was computed without its client."""
    made = await ask(http, "responses", {"input": SEALED["background"], "background": True, "store": True})
    told: dict[str, Any] = {}

    async def has_ended() -> bool:
        told.update((await http.get(f"/responses/{made['id']}")).json())
        return told["status"] in ("completed", "incomplete")

    await eventually(has_ended, "the response is there")
    return json.dumps(told["output"])


def pieces(text: str) -> list[str]:
    """Parts of an answer that JSON, Python and a line of a log write alike."""
    parts = text.replace("\\", "\n").replace('"', "\n").splitlines()
    return [part.strip() for part in parts if len(part.strip()) >= 24]


async def found_in_clear(platform: PlatformProcess, needles: dict[str, list[bytes]]) -> dict[str, list[str]]:
    """Keys and files, by what was found there."""
    places = await kept_by(platform.facts()["redis_url"], platform.data_dir)
    found = {name: [place for place, content in places if has_one(content, some)] for name, some in needles.items()}
    return {name: where for name, where in found.items() if where}


def open_client(platform: PlatformProcess) -> httpx.AsyncClient:
    """Client of a tenant whose answers are kept for others who ask the same, and that has an adapter."""
    admin = platform.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip()
    headers = {"authorization": f"Bearer {admin}"}
    with httpx.Client(base_url=f"{platform.facts()['admin_url']}/admin/v1", headers=headers, timeout=LIMIT_S) as http:
        assert http.post("/declaration", json=DECLARED).status_code == 200
        key = str(http.post("/keys", json={"tenant": "keeper", "name": IN_CLEAR["name of a key"]}).json()["key"])
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "adapter"
        shutil.copytree(SHIPPED_ADAPTERS / "unit-tests", copy)
        config = json.loads((copy / "adapter_config.json").read_text())
        config["peft_version"] = IN_CLEAR["config of an adapter"]
        (copy / "adapter_config.json").write_text(json.dumps(config))
        platform.stratos("adapters", "register", IN_CLEAR["name of an adapter"], str(copy), "--tenant", "keeper")
    sent = {"authorization": f"Bearer {key}", "connection": "close"}
    return httpx.AsyncClient(base_url=platform.base_url, headers=sent, timeout=None, trust_env=False)


async def test_texts_lie_open_nowhere_but_where_the_docs_say_so(platform: PlatformProcess) -> None:
    needles = {name: text_forms(text) for name, text in SEALED.items()}
    needles["tokens of a prompt"] = list(id_forms(PROMPT_IDS[5:17]))
    async with await asyncio.to_thread(open_client, platform) as http:
        for number, (path, body) in enumerate(REQUESTS):
            answer = await ask(http, path, body, **{"x-request-id": f"{IN_CLEAR['request id']}-{number}"})
            for choice in answer.get("choices", []):
                texts = pieces(choice.get("text", ""))
                needles[f"answer {number}"] = [form for text in texts for form in text_forms(text)]
                if ids := choice.get("token_ids"):
                    needles[f"tokens of answer {number}"] = list(id_forms(ids[4:16]))
        results = await run_batch(http)
        needles["results of a batch"] = [
            f for row in results.splitlines() for t in pieces(row_text(row)) for f in text_forms(t)
        ]
        needles["answer in the background"] = [f for t in pieces(await run_background(http)) for f in text_forms(t)]
        body = {"prompt": SEALED["streamed"], "stream": True, "max_tokens": 500, "ignore_eos": True, "model": "base"}
        async with http.stream(
            "POST", "/completions", json=body, headers={"idempotency-key": SEALED["key of a stream"]}
        ) as answer:
            assert answer.headers["x-stratos-stream"].startswith("strm_")
            lines = answer.aiter_lines()
            said = [await anext(lines) for _ in range(60)]
            text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in said if line.startswith("data: {"))
            needles["stream"] = [form for piece in pieces(text) for form in text_forms(piece)]
            assert sum(map(bool, needles.values())) > len(SEALED) + len(REQUESTS), "there are answers to look for"
            assert await found_in_clear(platform, needles) == {}
            async for _ in lines:
                pass
        await eventually(lambda: list((platform.data_dir / "kv").glob("*/*/*/*.kv")), "KV is on disk")
        await fill_spool(platform, http)
        assert await found_in_clear(platform, needles) == {}
    clear = {name: text_forms(text) for name, text in IN_CLEAR.items()}
    found = await found_in_clear(platform, clear)
    assert set(found) == set(IN_CLEAR), "what lies open is found"
    assert any("ledger/segments" in place for place in found["cost tag"]), "and what is packed, too"


def row_text(row: str) -> str:
    return str(json.loads(row)["response"]["body"]["choices"][0]["text"])


async def fill_spool(platform: PlatformProcess, http: httpx.AsyncClient) -> None:
    """Redis takes no write while a request ends: its entry is on the disk of its gateway."""
    spools = list(platform.data_dir.rglob("*.ledger"))
    with redis.Redis.from_url(platform.facts()["redis_url"]) as connection:
        connection.execute_command("CLIENT", "PAUSE", "120000", "WRITE")
        try:
            await ask(http, "completions", {"prompt": SEALED["spooled"]})
            await eventually(lambda: any(path.stat().st_size for path in spools), "an entry is in a spool")
        finally:
            connection.execute_command("CLIENT", "UNPAUSE")
