"""Two base models at one gateway: every route computes, counts, limits and bills by the model that a request names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.core.ledger.entry import LedgerEntry
from stratos.core.tenancy.prices import Price
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.receipt_store import ReceiptStore
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.ledger.billing import LedgerAccess
from stratos_gateway.models.loading import load_models
from stratos_gateway.models.settings import ModelConfig
from tests.support.fakes.scripted_embedder import ScriptedEmbedder
from tests.support.paths import BASE_MODEL
from tests.support.reference.second_model import CONTEXT, save_second_model
from tests.support.reference.shipped_model import base_digest, shipped_tokenizer
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import END_ID, World, gateway_world, make_adapter

CONFIG = RecordStoreConfig()
WORD = "h"
ASK: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": WORD}]},
    "/v1/completions": {"prompt": WORD},
    "/v1/responses": {"input": WORD},
    "/v1/messages": {"messages": [{"role": "user", "content": WORD}], "max_tokens": 4},
    "/v1/embeddings": {"input": WORD},
}
ROUTES = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
    "/v1/responses": "response",
    "/v1/messages": "message",
    "/v1/embeddings": "embedding",
}
NAMES = ("base", "second", "tuned")
"""Both models, and an adapter of the second one."""
PRICES = {"default": Price(prompt=1_000_000), "small": Price(prompt=500_000)}


@dataclass
class TwoModels:
    world: World
    reader: UsageReader
    digests: dict[str, str]
    tokenizers: dict[str, Tokenizer]
    embedder: ScriptedEmbedder

    async def post(self, path: str, name: str | None, **more: Any) -> httpx.Response:
        own = {} if name is None else {"model": name}
        return await self.world.http.post(path, json={**own, **ASK.get(path, {}), **more})

    async def entries(self, number: int) -> list[LedgerEntry]:
        day, found = f"{datetime.now(UTC):%Y-%m-%d}", list[LedgerEntry]()

        async def are_there() -> bool:
            found[:] = [entry async for entry in self.reader.entries("one", day)]
            return len(found) >= number

        await eventually(are_there, f"{number} entries of the ledger")
        return found


def base_of(name: str) -> str:
    return "second" if name == "tuned" else name


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_second_model(tmp_path_factory.mktemp("models") / "second")


@pytest.fixture
async def two(redis_url: str, second: Path) -> AsyncIterator[TwoModels]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(open_redis(redis_url))
        receipts = ReceiptStore(redis, CONFIG, 2**20, 3600)
        access = LedgerAccess(store=LedgerStore(redis, CONFIG), plan_of=lambda tenant: None, receipts=receipts)
        models = await load_models([ModelConfig(path=second)])
        world = await stack.enter_async_context(
            gateway_world(
                ledger_access=access,
                ledger={"interval_s": 0.02, "count_wait_s": 0.2},
                more_models=[{"path": second, "size": "small"}],
            )
        )
        embedder = ScriptedEmbedder("prefill-0")
        await embedder.start()
        stack.push_async_callback(embedder.stop)
        world.router.embedders = [embedder.ref]
        digests = {"base": base_digest(), "second": models.home.base.digest, "tuned": models.home.base.digest}
        world.registry.adapters[""] = [make_adapter("tuned", base_model_digest=digests["tuned"])]
        tokenizers = {"base": shipped_tokenizer(), **dict.fromkeys(("second", "tuned"), models.home.tokenizer)}
        world.worker.script = lambda submit, choice: [*tokenizers["base"].encode_plain(WORD), END_ID]
        world.keys.change_plan(KEY, prices=PRICES)
        yield TwoModels(world, UsageReader(redis, CONFIG), digests, tokenizers, embedder)


@pytest.mark.parametrize("name", NAMES)
async def test_an_answer_is_of_the_model_that_was_asked_for(two: TwoModels, name: str) -> None:
    num_tokens = 0
    for number, path in enumerate(ASK, 1):
        num_tokens += await num_checked(two, path, name)
        entry = next(entry for entry in await two.entries(number) if entry.tag.route == ROUTES[path])
        base = base_of(name)
        assert (entry.tag.model, entry.tag.adapter) == (base, "tuned" if name == "tuned" else "")
        assert entry.tag.model_size == ("small" if base == "second" else "")
        labels = {"model": base, "class": "1", "outcome": "finished"}
        assert two.world.metric("stratos_request_outcomes_total", **labels) == number
        counted = two.world.metric("stratos_prompt_tokens_total", **{"tenant": "one", "model": base, "class": "1"})
        assert counted == num_tokens


async def num_checked(two: TwoModels, path: str, name: str) -> int:
    """Ask one route, and see that the model's own words and digest are used; returns the prompt's tokens."""
    world, tokenizer, base = two.world, two.tokenizers[name], base_of(name)
    answer = await two.post(path, name)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == name
    assert world.router.requests[-1].model_digest == two.digests[name]
    if path == "/v1/embeddings":
        [call] = two.embedder.calls
        assert call.model_digest == two.digests[name]
        prompt = list(call.inputs[0].token_ids)
    else:
        submit = world.worker.submits[-1]
        assert submit.model_digest == two.digests[name]
        prompt = list(submit.prompt_ids)
        # The worker says an id, and the model's own tokenizer tells which word that is.
        assert f'"{tokenizer.decode(two.tokenizers["base"].encode_plain(WORD))}"' in answer.text
    assert tokenizer.encode_plain(WORD)[0] in prompt
    is_chat = path not in ("/v1/completions", "/v1/embeddings")
    assert ("second" in tokenizer.decode(prompt, skip_special=False)) == (is_chat and base == "second")
    return len(prompt)


async def test_texts_are_counted_by_the_model_they_name_and_without_a_name_by_the_first_one(two: TwoModels) -> None:
    for name in (*NAMES, None):
        tokenizer = two.tokenizers[name or "base"]
        found = (await two.post("/tokenize", name, prompt=WORD, add_special_tokens=False)).json()
        context = 4096 if name in ("base", None) else CONTEXT
        assert (found["tokens"], found["max_model_len"]) == (tokenizer.encode_plain(WORD), context)
        assert (await two.post("/detokenize", name, tokens=found["tokens"])).json() == {"prompt": WORD}
    messages = [{"role": "user", "content": WORD}]
    counts = [
        (await two.post("/v1/messages/count_tokens", name, messages=messages)).json()["input_tokens"]
        for name in ("base", "second")
    ]
    assert counts[1] > counts[0]
    info = (await two.world.http.get("/tokenizer_info", params={"model": "second"})).json()
    assert info["chat_template"].startswith("second:")
    assert (await two.world.http.get("/tokenizer_info", params={"model": "gone"})).status_code == 404


async def test_the_list_shows_what_the_key_may_use_and_whose_adapter_each_is(two: TwoModels) -> None:
    async def shown() -> dict[str, Any]:
        return {entry["id"]: entry for entry in (await two.world.http.get("/v1/models")).json()["data"]}

    found = await shown()
    assert list(found) == ["base", "second", "tuned"]
    assert [entry["parent"] for entry in found.values()] == [None, None, "second"]
    assert [entry["max_model_len"] for entry in found.values()] == [4096, CONTEXT, CONTEXT]
    assert {(entry["call_syntax"], entry["reasoning_tags"]) for entry in found.values()} == {("generic", None)}
    assert [entry["revision"] for entry in found.values()] == [
        two.digests["base"], two.digests["second"], "digest-of-tuned",
    ]  # fmt: skip
    two.world.blocks.models.add("second")
    assert list(await shown()) == ["base"]
    for path in ASK:
        assert (await two.post(path, "second")).status_code == 403
        assert (await two.post(path, "tuned")).status_code == 403
        assert (await two.post(path, "base")).status_code == 200
    two.world.blocks.models.clear()
    tenant = two.world.keys.tenants[KEY]
    two.world.keys.tenants[KEY] = replace(tenant, models=("second", "tuned"))
    assert list(await shown()) == ["second", "tuned"]
    for path in ASK:
        refusal = await two.post(path, "base")
        assert (refusal.status_code, refusal.json()["error"].get("type")) in {
            (404, "invalid_request_error"), (404, "not_found_error"),
        }  # fmt: skip
        assert (await two.post(path, "tuned")).status_code == 200
    assert (await two.world.http.get("/v1/models/base")).status_code == 404
    assert (await two.world.http.get("/v1/models/second")).json()["id"] == "second"


async def test_a_limit_holds_for_each_model_by_itself_and_for_its_adapters_with_it(two: TwoModels) -> None:
    two.world.keys.change_plan(KEY, requests_per_min=60, burst_s=1)
    path = "/v1/completions"
    statuses = [(await two.post(path, name)).status_code for name in ("base", "base", "second", "tuned")]
    assert statuses == [200, 429, 200, 429]


async def test_a_kept_answer_is_of_its_model(two: TwoModels) -> None:
    two.world.keys.change_plan(KEY, response_cache=True)
    for name in ("base", "second", "base", "second"):
        answer = await two.post("/v1/completions", name, prompt=[5, 6], temperature=0)
        assert answer.json()["model"] == name
    assert [r.model_digest for r in two.world.router.requests] == [two.digests["base"], two.digests["second"]]


async def test_a_receipt_names_the_model(two: TwoModels) -> None:
    body = {"model": "second", "prompt": WORD}
    assert (await two.world.http.post("/v1/completions", json=body, headers={"x-request-id": "r-1"})).is_success
    await eventually(lambda: _has_receipt(two), "the receipt")


async def _has_receipt(two: TwoModels) -> bool:
    answer = await two.world.http.get("/v1/requests/r-1/receipt")
    return answer.is_success and answer.json()["request"]["model"] == "second"


async def test_a_prompt_is_bounded_by_the_context_of_its_model(two: TwoModels) -> None:
    prompt = [5] * (CONTEXT + 1)
    refusal = await two.post("/v1/completions", "second", prompt=prompt)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert (await two.post("/v1/completions", "base", prompt=prompt)).status_code == 200


@pytest.mark.parametrize(
    ("names", "said"), [(("a", "a"), "two models have the name 'a'"), (("a", "b"), "'b' and 'a' are one model")]
)
async def test_two_models_that_are_one_are_refused(names: tuple[str, str], said: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=said):
        await load_models([ModelConfig(path=BASE_MODEL, name=name) for name in names])
