"""Every dialect of the generation API x what acts on every request: one table, and a dialect that it lacks fails it.

A WebSocket is one more row: each of its messages is a request.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from redis.asyncio import Redis

from stratos.api.worker.v1 import decode_pb2
from stratos.core.ledger.entry import LedgerEntry
from stratos.core.tenancy.content import ContentPolicy
from stratos.core.tenancy.plan import ALL_MODELS, BATCH, CHEAP_TIERS
from stratos.core.tenancy.prices import Budget, Price
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.receipt_store import ReceiptStore
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.ledger.billing import LedgerAccess
from stratos_gateway.preparation.dialects import DIALECTS
from stratos_gateway.scoring.dialects import SCORING_DIALECTS
from tests.support.paths import BASE_MODEL
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY, PLAN
from tests.support.worlds.gateway_world import World, gateway_world, say
from tests.support.worlds.socket_client import SocketClient

TEXT = "one two three four five six seven eight"
CONFIG = RecordStoreConfig()
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": MESSAGES,
    "/v1/completions": {"prompt": "hi and hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": MESSAGES,
}
SCORED: Mapping[str, dict[str, Any]] = {
    "/v1/score": {"text_1": "hi", "text_2": "and hi " * 40},
    "/v1/rerank": {"query": "hi", "documents": ["and hi " * 40]},
}
"""Those without streams and without a bound of the answer."""
MAX_TOKENS = {"/v1/responses": "max_output_tokens"}
"""Names of the bound of an answer, other than ``max_tokens``."""
TEXTS: Mapping[str, Callable[[Any], str]] = {
    "/v1/chat/completions": lambda answer: answer["choices"][0]["message"]["content"],
    "/v1/completions": lambda answer: answer["choices"][0]["text"],
    "/v1/responses": lambda answer: answer["output"][0]["content"][0]["text"],
    "/v1/messages": lambda answer: answer["content"][0]["text"],
    "/v1/score": lambda answer: TEXT * (0 < answer["data"][0]["score"] < 1),
    "/v1/rerank": lambda answer: TEXT * (0 < answer["results"][0]["relevance_score"] < 1),
}
DELTAS: Mapping[str, Callable[[Any], str]] = {
    "/v1/chat/completions": lambda event: event["choices"][0]["delta"].get("content") or "",
    "/v1/completions": lambda event: event["choices"][0]["text"],
    "/v1/responses": lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    "/v1/messages": lambda event: event["delta"]["text"] if event["type"] == "content_block_delta" else "",
}
PRICED = replace(PLAN, prices={"default": Price(prompt=2_000_000, cached=500_000, output=6_000_000)})
QUICK: dict[str, Any] = {"interval_s": 0.02, "count_wait_s": 0.2, "budget_interval_s": 0.05}
SOCKET = "socket"
ROUTES = pytest.mark.parametrize("route", [*BODIES, SOCKET])
ALL_ROUTES = pytest.mark.parametrize("route", [*BODIES, *SCORED, SOCKET])
ALL_DIALECTS = (*DIALECTS, *SCORING_DIALECTS)


def test_every_dialect_is_walked() -> None:
    assert {dialect.path for dialect in DIALECTS} == set(BODIES) == set(DELTAS)
    assert {dialect.path for dialect in ALL_DIALECTS} == {*BODIES, *SCORED} == set(TEXTS)


def folder_with_head(path: Path) -> Path:
    """The shipped model as one that judges by "0" and "1"."""
    shutil.copytree(BASE_MODEL, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "classifier_from_token": ["0", "1"]}))
    (path / "score_template.jinja").write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    return path


def talk(submit: decode_pb2.Submit, choice: int) -> Sequence[int]:
    """Say the text, or the allowed token whose likely neighbour is the other one."""
    allowed = submit.sampling.allowed_token_ids
    return [min(allowed)] if allowed else say(TEXT)(submit, choice)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with open_redis(redis_url) as made:
        yield made


@pytest.fixture
async def world(redis: Redis, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        store, receipts = LedgerStore(redis, CONFIG), ReceiptStore(redis, CONFIG, 2**20, 3600)
        access = LedgerAccess(store=store, plan_of=lambda tenant: PRICED, receipts=receipts)
        model = {"model": {"path": folder_with_head(tmp_path / "model"), "name": "base"}}
        made = await stack.enter_async_context(gateway_world(2, ledger_access=access, ledger=QUICK, **model))
        for worker in made.workers:
            worker.script = talk
        made.keys.tenants[KEY] = replace(made.keys.tenants[KEY], plan=PRICED)
        yield made


@dataclass(frozen=True)
class Answer:
    """An answer of HTTP, or that of a socket in the same form."""

    status_code: int
    content: Any
    request_id: str = ""

    def json(self) -> Any:
        return self.content


def path_of(route: str) -> str:
    return "/v1/responses" if route == SOCKET else route


async def post(world: World, route: str, *, headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
    if route != SOCKET:
        answer = await world.http.post(route, json=body(route, **fields), headers=headers)
        return Answer(answer.status_code, answer.json(), answer.headers["x-request-id"])
    given = {name.replace("-", "_"): value for name, value in (headers or {}).items()}
    async with SocketClient(world, **given) as socket:
        if socket.status != 101:
            return Answer(socket.status, socket.refusal)
        found = await socket.answer(**_asked(fields))
        status = found["status"] if found.get("error") else 200
        return Answer(status, found, f"{socket.headers['x-request-id']}-1")


def _asked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a socket's message beside its model."""
    return {name: value for name, value in body("/v1/responses", **fields).items() if name not in ("model", "input")}


def body(route: str, max_tokens: int = 64, **more: Any) -> dict[str, Any]:
    if route in SCORED:
        return {"model": "base", **SCORED[route], **more}
    return {"model": "base", **BODIES[route], MAX_TOKENS.get(route, "max_tokens"): max_tokens, **more}


async def code(world: World, route: str, **more: Any) -> tuple[int, str]:
    """Status and machine code of a refusal."""
    answer = await post(world, route, **more)
    return answer.status_code, answer.json()["error"]["code"]


async def streamed(world: World, route: str) -> str:
    if route == SOCKET:
        async with SocketClient(world) as socket:
            socket.create(**_asked({}))
            return "".join(DELTAS["/v1/responses"](event) for event in await socket.events())
    answer = await world.http.post(route, json=body(route, stream=True))
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(DELTAS[route](json.loads(line)) for line in lines)


def documented(route: str) -> dict[str, Any]:
    """Schema of a whole answer, as the API's document has it."""
    document = json.loads((resources.files("stratos_gateway.openapi") / "openapi.json").read_text())
    content = document["paths"][route]["post"]["responses"]["200"]["content"]["application/json"]
    return {**content["schema"], "components": document["components"]}


async def entries(redis: Redis) -> list[LedgerEntry]:
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    return [entry async for entry in UsageReader(redis, CONFIG).entries("one", day)]


@ALL_ROUTES
async def test_an_answer_is_whole_billed_and_receipted(world: World, redis: Redis, route: str) -> None:
    answer = await post(world, route, headers={"x-request-id": "mine"})
    assert TEXTS[path_of(route)](answer.json()) == TEXT
    if route in BODIES:
        jsonschema.validate(answer.json(), documented(route))
    request_id = "mine-1" if route == SOCKET else "mine"
    assert answer.request_id == request_id
    while not (found := await entries(redis)):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    (entry,) = found
    (name,) = [dialect.route for dialect in ALL_DIALECTS if dialect.path == path_of(route)]
    assert (entry.tag.route, entry.tag.http_request_id) == (name, request_id)
    assert entry.counts.num_prompt == len(world.workers[0].submits[0].prompt_ids)
    assert entry.counts.num_output > 0 < entry.amounts.due

    async def is_receipted() -> bool:
        receipt = await world.http.get(f"/v1/requests/{request_id}/receipt")
        return receipt.status_code == 200 and receipt.json()["answer"]["outcome"] == "finished"

    await eventually(is_receipted, "the receipt is written")


@ALL_ROUTES
async def test_what_a_tenant_may_not_do_is_refused_before_any_worker_hears_of_it(world: World, route: str) -> None:
    world.content.policies["rules"] = ContentPolicy(words={"greeting": ("hi",)})
    world.keys.change_plan(KEY, content_policy="rules")
    assert await code(world, route) == (400, "content_filter")
    world.keys.change_plan(KEY, content_policy="", max_tokens=32)
    if route not in SCORED:
        assert (await code(world, route))[0] == 400
    world.keys.change_plan(KEY, max_tokens=None, models=("other",))
    assert await code(world, route) == (404, "model_not_found")
    world.keys.change_plan(KEY, models=ALL_MODELS, max_prompt_tokens=1)
    assert await code(world, route) == (400, "context_length_exceeded")
    world.keys.change_plan(KEY, max_prompt_tokens=4096, tokens_per_min=60, burst_s=60)
    assert await code(world, route) == (429, "request_over_rate_limit")
    world.keys.change_plan(KEY, tokens_per_min=None, requests_per_min=1)
    assert (await post(world, route)).status_code == 200
    assert await code(world, route) == (429, "rate_limit_exceeded")
    world.keys.change_plan(KEY, requests_per_min=None)
    world.blocks.models.add("base")
    assert (await code(world, route))[0] == 403
    assert await code(world, route, headers={"authorization": "Bearer sk-unknown"}) == (401, "invalid_api_key")
    assert world.placed == 1


@ALL_ROUTES
async def test_a_budget_that_is_spent_refuses(world: World, redis: Redis, route: str) -> None:
    world.keys.change_plan(KEY, budget=Budget(soft=1, hard=2))
    assert (await post(world, route)).status_code == 200

    async def is_refused() -> bool:
        return (await post(world, route)).status_code == 429

    await eventually(is_refused, "the budget is spent")
    assert await code(world, route) == (429, "insufficient_quota")


@pytest.mark.parametrize("route", [route for route in (*BODIES, SOCKET) if route != "/v1/messages"])
async def test_a_cheaper_tier_waits_for_all_others_at_half_the_price(world: World, redis: Redis, route: str) -> None:
    world.keys.change_plan(KEY, ttft_ms=1, priority_class=1)
    for tier in CHEAP_TIERS:
        assert (await post(world, route, service_tier=tier)).status_code == 200
    while len(found := await entries(redis)) < len(CHEAP_TIERS):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    for amounts in (entry.amounts for entry in found):
        assert amounts.batch_discount == (amounts.gross - amounts.cached_discount) // 2 > 0 == amounts.credit
    assert [request.terms.priority_class for request in world.router.requests] == [BATCH.priority_class] * 2
    assert (await code(world, route, service_tier="priority"))[0] == 400


@ROUTES
async def test_a_kept_answer_is_given_again_by_every_route_that_asks_the_same(world: World, route: str) -> None:
    world.keys.change_plan(KEY, response_cache=True, response_ttl_s=3600)
    answers = [await post(world, route, temperature=0) for _ in range(2)]
    assert [TEXTS[path_of(route)](answer.json()) for answer in answers] == [TEXT] * 2
    assert world.placed == 1
    chat, others = "/v1/chat/completions", ("/v1/responses", "/v1/messages")
    if route == chat:
        for other in others:
            answer = await world.http.post(other, json=body(other, temperature=0))
            assert TEXTS[other](answer.json()) == TEXT
        assert world.placed == 1, "their prompts are the same"


@ROUTES
async def test_a_worker_killed_in_the_middle_changes_nothing(world: World, route: str) -> None:
    world.workers[0].die_after = 3
    found = {await streamed(world, route), await streamed(world, route)}
    assert found == {TEXT}
    assert sum(len(worker.submits) for worker in world.workers) == 3, "one of them moved"


@ROUTES
async def test_a_client_that_leaves_and_a_deadline_end_the_work(world: World, route: str) -> None:
    for worker in world.workers:
        worker.script, worker.step_s = lambda submit, choice: [9] * 1000, 0.01
    if route == SOCKET:
        async with SocketClient(world) as socket:
            socket.create(**_asked({"max_tokens": 900}))
            await socket.event()
    else:
        async with world.http.stream("POST", route, json=body(route, 900, stream=True)) as answer:
            await anext(answer.aiter_bytes())
    await eventually(lambda: any(worker.cancels for worker in world.workers), "it is cancelled")
    await world.wait_idle()
    for worker in world.workers:
        worker.step_s = 30.0
    assert (await code(world, route, headers={"x-stratos-deadline-ms": "300"}))[0] == 503
    await world.wait_idle()


@pytest.mark.parametrize("route", SCORED)
async def test_a_score_outlives_its_worker_and_a_deadline_ends_it(world: World, route: str) -> None:
    world.workers[0].die_after = 0
    for _ in range(2):
        answer = await world.http.post(route, json=body(route))
        assert TEXTS[route](answer.json()) == TEXT
    assert sum(len(worker.submits) for worker in world.workers) == 3, "one of them moved"
    world.workers[1].step_s = 30.0
    assert (await code(world, route, headers={"x-stratos-deadline-ms": "300"}))[0] == 503
    await world.wait_idle()


@pytest.mark.parametrize("route", [*BODIES, *SCORED])
async def test_a_client_that_leaves_before_the_first_byte_ends_the_work(world: World, route: str) -> None:
    for worker in world.workers:
        worker.step_s = 30.0
    leaving = asyncio.create_task(world.http.post(route, json=body(route)))
    await eventually(lambda: any(worker.submits for worker in world.workers), "the work is begun")
    leaving.cancel()
    await eventually(lambda: any(worker.cancels for worker in world.workers), "it ends with its client")
    await world.wait_idle()
