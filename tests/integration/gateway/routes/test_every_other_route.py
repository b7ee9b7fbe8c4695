"""Computing routes that are no dialects x what acts on every request; a new computing route without a row fails.

A lost classifier of moderations is in ``test_policies``; those of the last three routes compute at the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from stratos.core.tenancy.content import ContentPolicy
from stratos.core.tenancy.plan import ALL_MODELS
from stratos.core.tenancy.prices import Budget, Price
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.receipt_store import ReceiptStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway import wiring
from stratos_gateway.ledger.billing import LedgerAccess
from stratos_gateway.preparation.dialects import DIALECTS
from stratos_gateway.scoring.dialects import SCORING_DIALECTS
from tests.support.fakes.scripted_embedder import ScriptedEmbedder
from tests.support.fakes.scripted_http import Asked, Reply, ScriptedHttp, scripted_http
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY, PLAN
from tests.support.worlds.gateway_world import World, gateway_world

CONFIG = RecordStoreConfig()
EMBEDDINGS, MODERATIONS = "/v1/embeddings", "/v1/moderations"
BODIES: Mapping[str, dict[str, Any]] = {
    EMBEDDINGS: {"model": "base", "input": "hi"},
    MODERATIONS: {"input": "hi"},
    "/tokenize": {"model": "base", "prompt": "hi"},
    "/detokenize": {"model": "base", "tokens": [76, 77]},
    "/v1/messages/count_tokens": {"model": "base", "messages": [{"role": "user", "content": "hi"}]},
}
PRICED = replace(PLAN, prices={"default": Price(prompt=2_000_000, cached=500_000, output=6_000_000)})
QUICK: dict[str, Any] = {"interval_s": 0.02, "count_wait_s": 0.2, "budget_interval_s": 0.05}
ROUTES = pytest.mark.parametrize("route", BODIES)


@dataclass(frozen=True)
class Elsewhere:
    """What other processes compute for routes that are none of the dialects; whether they answer is the test's."""

    world: World
    classifier: ScriptedHttp
    embedders: list[ScriptedEmbedder]
    answers: asyncio.Event

    def hang(self) -> None:
        """Let nobody answer from now on."""
        self.answers.clear()
        for embedder in self.embedders:
            embedder.blocks = True

    def num_asked(self) -> int:
        return len(self.classifier.asked) + sum(len(embedder.calls) for embedder in self.embedders)

    def num_left(self) -> int:
        return self.classifier.num_left + sum(embedder.num_cancelled for embedder in self.embedders)


@pytest.fixture
async def elsewhere() -> AsyncIterator[Elsewhere]:
    answers = asyncio.Event()
    answers.set()

    async def script(asked: Asked, reply: Reply) -> None:
        await answers.wait()
        await reply.send({"results": [{"category_scores": {"a": 0.1}}]})

    async with AsyncExitStack() as stack:
        classifier = await stack.enter_async_context(scripted_http(script))
        policies = {"classifier_url": f"{classifier.url}/v1/moderations", "classifier_timeout_s": 60.0}
        world = await stack.enter_async_context(gateway_world(policies=policies))
        world.content.policies["judged"] = ContentPolicy(classifier_threshold=0.5, checks_input=False)
        world.keys.change_plan(KEY, content_policy="judged")
        embedders = [ScriptedEmbedder(f"prefill-{number}") for number in range(2)]
        for embedder in embedders:
            await embedder.start()
            stack.push_async_callback(embedder.stop)
        world.router.embedders = [embedder.ref for embedder in embedders]
        yield Elsewhere(world, classifier, embedders, answers)


@pytest.fixture
async def world(redis_url: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(open_redis(redis_url))
        store, receipts = LedgerStore(redis, CONFIG), ReceiptStore(redis, CONFIG, 2**20, 3600)
        access = LedgerAccess(store=store, plan_of=lambda tenant: PRICED, receipts=receipts)
        made = await stack.enter_async_context(gateway_world(ledger_access=access, ledger=QUICK))
        embedder = ScriptedEmbedder("prefill-0")
        await embedder.start()
        stack.push_async_callback(embedder.stop)
        made.router.embedders = [embedder.ref]
        made.keys.tenants[KEY] = replace(made.keys.tenants[KEY], plan=PRICED)
        made.content.policies["none"] = ContentPolicy(words={"other": ("zebra",)})
        made.content.policies["rules"] = ContentPolicy(words={"greeting": ("hi",)})
        made.keys.change_plan(KEY, content_policy="none")
        yield made


async def asked(world: World, route: str, **headers: str) -> tuple[int, str]:
    """Status, and the machine code of a refusal."""
    answer = await world.http.post(route, json=BODIES[route], headers=headers)
    error = answer.json().get("error") if answer.status_code >= 400 else None
    return answer.status_code, error["code"] if error else ""


async def test_every_computing_route_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    found, build = set[str](), wiring.build_endpoints

    def noted(*arguments: Any) -> Any:
        endpoints = build(*arguments)
        found.update(endpoints)
        return endpoints

    monkeypatch.setattr(wiring, "build_endpoints", noted)
    async with gateway_world():
        assert found == {*BODIES, *(dialect.path for dialect in (*DIALECTS, *SCORING_DIALECTS))}


@ROUTES
async def test_what_a_tenant_may_not_do_is_refused(world: World, route: str) -> None:
    assert await asked(world, route) == (200, "")
    world.keys.change_plan(KEY, content_policy="rules")
    is_reading = route != MODERATIONS  # which tells what is found
    assert await asked(world, route) == ((400, "content_filter") if is_reading else (200, ""))
    world.keys.change_plan(KEY, content_policy="none", models=("other",))
    names_model = route != MODERATIONS
    assert await asked(world, route) == ((404, "model_not_found") if names_model else (200, ""))
    world.keys.change_plan(KEY, models=ALL_MODELS, requests_per_min=1)
    assert await asked(world, route) == (200, "")
    assert await asked(world, route) == (429, "rate_limit_exceeded")
    world.keys.change_plan(KEY, requests_per_min=None)
    if names_model:
        world.blocks.models.add("base")
        assert (await asked(world, route))[0] == 403
    assert await asked(world, route, authorization="Bearer sk-unknown") == (401, "invalid_api_key")


async def test_embeddings_are_billed_receipted_and_bounded(world: World) -> None:
    world.keys.change_plan(KEY, budget=Budget(soft=1, hard=2))
    assert await asked(world, EMBEDDINGS, **{"x-request-id": "mine"}) == (200, "")

    async def is_receipted() -> bool:
        receipt = await world.http.get("/v1/requests/mine/receipt")
        return receipt.status_code == 200 and receipt.json()["answer"]["outcome"] == "finished"

    async def is_spent() -> bool:
        return await asked(world, EMBEDDINGS) == (429, "insufficient_quota")

    await eventually(is_receipted, "the receipt is written")
    await eventually(is_spent, "the entry is in the ledger, and the budget is spent")


@pytest.mark.parametrize("route", [EMBEDDINGS, MODERATIONS])
async def test_a_client_that_leaves_and_a_deadline_end_the_work(elsewhere: Elsewhere, route: str) -> None:
    world = elsewhere.world
    assert await asked(world, route) == (200, "")
    elsewhere.hang()
    before = elsewhere.num_asked()
    leaving = asyncio.create_task(asked(world, route))
    await eventually(lambda: elsewhere.num_asked() > before, "the work is begun")
    leaving.cancel()
    await eventually(lambda: elsewhere.num_left() == 1, "it ends with its client")
    assert await asked(world, route, **{"x-stratos-deadline-ms": "300"}) == (503, "queue_timeout")
    await eventually(lambda: elsewhere.num_left() == elsewhere.num_asked() - 1, "what was begun ends at its deadline")


async def test_embeddings_outlive_their_worker(elsewhere: Elsewhere) -> None:
    first, second = elsewhere.embedders
    first.dies = True
    for _ in range(2):
        assert await asked(elsewhere.world, EMBEDDINGS) == (200, "")
    assert (len(first.calls), len(second.calls)) == (1, 2), "one of them moved"
    await elsewhere.world.wait_placements_completed()
