"""Requests that schemathesis makes of the OpenAPI document: no 5xx, and no answer that the document does not have.

The gateway has all stores and an embedder.  Routes of one object are asked twice: for ids that are made up, under a
content policy, and for objects that are there, of which every route shows one at least.  Answers under such a policy
are not kept, so these come without it.  The model has no head for scores: what scores and rankings say is compared
with the document elsewhere (``tests/unit/gateway/openapi``).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.core.requests.grammar import check_grammar
from stratos.core.tenancy.plan import PREMIUM
from stratos.engine.grammar.matcher import GrammarMatcher
from stratos.text.grammar import compile_grammar
from tests.support.fakes.scripted_embedder import ScriptedEmbedder
from tests.support.paths import ROOT
from tests.support.reference.call_matchers import grammar_tokenizer, random_ids
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.servers.redis_server import running_redis
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.gateway_world import say
from tests.support.worlds.stream_world import TEXT, stream_worlds

PROGRAM = ROOT / ".venv-clients-3" / "bin" / "schemathesis"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
BODY = {"model": "base", "input": "go", "max_output_tokens": 4}
TERMS = {
    "policies": {"careful": {"words": {"birds": ["kestrel"]}}},
    "tenants": {"acme": {"plan": PREMIUM.name, "overrides": {"content_policy": "careful"}}},
}
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AdminWorld]:
    embedder = ScriptedEmbedder("prefill-0")
    await embedder.start()
    with running_redis(tmp_path / "redis") as redis:
        async with stream_worlds(redis.url, tmp_path, num=1) as (made,):
            made.router.embedders = [embedder.ref]
            made.worker.script = obey
            yield made
    await embedder.stop()


def obey(submit: decode_pb2.Submit, choice: int) -> Sequence[int]:
    """What the request's grammar allows, and without one what the world's worker says."""
    wanted = submit.sampling.grammar
    if not wanted.kind:
        return say(TEXT)(submit, choice)
    matcher = GrammarMatcher(compile_grammar(check_grammar(wanted.kind, wanted.text, "grammar"), grammar_tokenizer()))
    closing = [id for text in '"]}' for id in shipped_tokenizer().encode_plain(text)]
    return random_ids(matcher, choice, submit.sampling.max_tokens, closing)


async def is_judged(world: AdminWorld) -> bool:
    headers = {"authorization": f"Bearer {world.keys['user']}"}
    return (await world.public.post("/v1/moderations", headers=headers, json={"input": "hi"})).status_code == 200


async def ask(world: AdminWorld, method: str, path: str, *, key: str = "", **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {world.keys['user']}"} | ({"idempotency-key": key} if key else {})
    answer = await world.public.request(method, path, headers=headers, **more)
    assert answer.status_code == 200, answer.text
    return answer


async def file_id(world: AdminWorld) -> str:
    line = {"custom_id": "c", "method": "POST", "url": "/v1/responses", "body": BODY}
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", json.dumps(line).encode())}}
    return str((await ask(world, "POST", "/v1/files", **form)).json()["id"])


async def batch_id(world: AdminWorld) -> str:
    body = {"input_file_id": await file_id(world), "endpoint": "/v1/responses", "completion_window": "24h"}
    return str((await ask(world, "POST", "/v1/batches", json=body)).json()["id"])


async def response_id(world: AdminWorld, **more: Any) -> str:
    return str((await ask(world, "POST", "/v1/responses", json={**BODY, "store": True, **more})).json()["id"])


async def stream_id(world: AdminWorld, key: str) -> str:
    answer = await ask(world, "POST", "/v1/responses", key=key, json={**BODY, "stream": True})
    return answer.headers["x-stratos-stream"]


async def request_id(world: AdminWorld) -> str:
    """A request whose receipt is there."""
    found = (await ask(world, "POST", "/v1/responses", json=BODY)).headers["x-request-id"]
    headers = {"authorization": f"Bearer {world.keys['user']}"}

    async def has_receipt() -> bool:
        return (await world.public.get(f"/v1/requests/{found}/receipt", headers=headers)).status_code == 200

    await eventually(has_receipt, "the request has a receipt")
    return str(found)


async def objects(world: AdminWorld) -> dict[str, str]:
    """An object for each route of one; those that end it have one of their own."""
    file, response = await file_id(world), await response_id(world)
    return {
        "GET /v1/files/{file_id}": file,
        "GET /v1/files/{file_id}/content": file,
        "DELETE /v1/files/{file_id}": await file_id(world),
        "GET /v1/batches/{batch_id}": await batch_id(world),
        "POST /v1/batches/{batch_id}/cancel": await batch_id(world),
        "GET /v1/responses/{response_id}": response,
        "GET /v1/responses/{response_id}/input_items": response,
        "DELETE /v1/responses/{response_id}": await response_id(world),
        "POST /v1/responses/{response_id}/cancel": await response_id(world, background=True),
        "GET /v1/streams/{stream_id}": await stream_id(world, "one"),
        "POST /v1/streams/{stream_id}/cancel": await stream_id(world, "two"),
        "GET /v1/requests/{request_id}/receipt": await request_id(world),
        "GET /v1/models/{name}": "base",
    }


def configuration(found: Mapping[str, str]) -> str:
    """Ids of objects, as schemathesis reads them."""
    rows = ((name, re.findall(r"{(\w+)}", name)[0], value) for name, value in found.items())
    return "".join(
        f'[[operations]]\ninclude-name = "{name}"\nparameters = {{ "path.{part}" = "{value}" }}\n'
        for name, part, value in rows
    )


async def run(world: AdminWorld, folder: Path, *options: str) -> tuple[str, list[tuple[str, str, int]]]:
    """What schemathesis prints, and method, path and status of each answer that it got; it found nothing wrong."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "run", f"http://{world.service.http_address}/openapi.json", "--header",
        f"Authorization: Bearer {world.keys['user']}", "--checks", CHECKS, "--max-examples", "20", "--seed", "1",
        "--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--report", "har", "--report-har-path",
        "answers.har", *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=folder,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    entries = json.loads((folder / "answers.har").read_text())["log"]["entries"]
    answers = [
        (one["request"]["method"], urlsplit(one["request"]["url"]).path, one["response"]["status"]) for one in entries
    ]
    return output.decode(), answers


async def test_no_request_gets_an_answer_that_the_document_does_not_have(world: AdminWorld, tmp_path: Path) -> None:
    await world.call("POST", "/declaration", TERMS)
    await eventually(partial(is_judged, world), "the content policy holds")
    output, answers = await run(world, tmp_path)
    assert "Tested: 39" in output, output
    done = {path for method, path, status in answers if status == 200 and method == "POST"}
    computing = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"}
    assert computing | {"/v1/moderations", "/tokenize", "/detokenize", "/v1/messages/count_tokens"} <= done


async def test_objects_that_are_there_are_shown_as_the_document_says(world: AdminWorld, tmp_path: Path) -> None:
    found = await objects(world)
    (tmp_path / "schemathesis.toml").write_text(configuration(found))
    _, answers = await run(world, tmp_path, "--include-path-regex", "{")
    done = {(method, path) for method, path, status in answers if status < 300}
    names = {name: name.replace(re.findall(r"{\w+}", name)[0], value) for name, value in found.items()}
    assert [name for name, asked in names.items() if tuple(asked.split(" ")) not in done] == []
    assert len(found) == sum("{" in path for path in await documented(world))


async def documented(world: AdminWorld) -> list[str]:
    """Methods and paths of the document."""
    paths = (await world.public.get("/openapi.json")).json()["paths"]
    return [f"{method} {path}" for path, methods in paths.items() for method in methods]
