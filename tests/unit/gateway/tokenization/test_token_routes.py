"""Texts, conversations and token ids over HTTP; the router behind these routes has no room, and is never asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from stratos.common.errors import ModelNotFound
from stratos.core.requests.limits import MAX_COUNTED_TOKENS
from stratos.core.tenancy.plan import Plan
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos_gateway.preparation.dialects import CHAT
from stratos_gateway.preparation.generation import GenerationPreparer
from stratos_gateway.tokenization.endpoints import tokenizer_info
from tests.support.reference.shipped_model import VOCAB_SIZE, preparation_tools, served_model, shipped_tokenizer
from tests.support.worlds.gateway_routes import full_app

TEXT = "def f(x): # Zürich \U0001f600<|end|>"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, **more}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": "Bearer k"}
    transport = httpx.ASGITransport(full_app(2 << 20))
    async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as made:
        yield made


async def ask(client: httpx.AsyncClient, route: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(route, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def refusal(client: httpx.AsyncClient, route: str, **body: Any) -> tuple[int, str, str | None]:
    answer = await client.post(route, json=body)
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def test_a_text_has_the_ids_of_the_model_and_comes_back(client: httpx.AsyncClient) -> None:
    found = await ask(client, "/tokenize", prompt=TEXT, return_token_strs=True)
    assert found["tokens"] == shipped_tokenizer().encode(TEXT, add_special_tokens=True)
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), served_model().base.max_model_len)
    assert (len(found["token_strs"]), found["token_strs"][-1]) == (found["count"], "<|end|>")
    assert (await ask(client, "/detokenize", model="base", tokens=found["tokens"])) == {"prompt": TEXT}
    assert (await ask(client, "/tokenize", prompt=""))["count"] == len(
        shipped_tokenizer().encode("", add_special_tokens=True)
    )
    assert (await ask(client, "/detokenize", tokens=[])) == {"prompt": ""}
    assert (await ask(client, "/tokenize", prompt="x"))["token_strs"] is None


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS}], ids=["plain", "tools"])
async def test_a_conversation_has_the_ids_that_a_chat_runs_with(
    client: httpx.AsyncClient, more: dict[str, Any]
) -> None:
    found = await ask(client, "/tokenize", model="base", messages=MESSAGES, **more)
    model = served_model()
    tools = preparation_tools(model)
    body = {"model": "base", "messages": MESSAGES, **more}
    prepared = await GenerationPreparer(tools, CHAT).prepare(body, Tenant(name="t"), NO_TRACE)
    assert tuple(found["tokens"]) == prepared.specs[0].prompt_ids


async def test_a_conversation_may_end_otherwise(client: httpx.AsyncClient) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "yes"}]
    whole = await ask(client, "/tokenize", messages=messages)
    closed = await ask(client, "/tokenize", messages=messages, add_generation_prompt=False)
    ends = {"add_generation_prompt": False, "continue_final_message": True}
    open_ended = await ask(client, "/tokenize", messages=messages, **ends)
    assert whole["tokens"][: closed["count"]] == closed["tokens"]
    assert closed["tokens"][: open_ended["count"]] == open_ended["tokens"]
    assert whole["count"] > closed["count"] > open_ended["count"]


async def test_what_is_too_long_for_any_prompt_is_counted(client: httpx.AsyncClient) -> None:
    text = "a b c " * 20_000
    assert (await ask(client, "/tokenize", prompt=text))["count"] > served_model().base.max_model_len
    assert (await ask(client, "/tokenize", messages=[{"role": "user", "content": text}]))["count"] > 60_000
    assert len((await ask(client, "/detokenize", tokens=[5] * 50_000))["prompt"]) >= 50_000


@pytest.mark.parametrize(
    ("route", "body", "refused"),
    [
        ("/tokenize", {}, (400, "invalid_request", "prompt")),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, (400, "invalid_request", "prompt")),
        ("/tokenize", {"prompt": [1, 2]}, (400, "invalid_request", "prompt")),
        ("/tokenize", {"prompt": "x", "model": "gone"}, (404, "model_not_found", "model")),
        ("/tokenize", {"prompt": "x", "more": 1}, (400, "unknown_parameter", "more")),
        ("/tokenize", {"messages": []}, (400, "invalid_request", "messages")),
        ("/tokenize", chat(add_special_tokens=1), (400, "invalid_request", "add_special_tokens")),
        ("/tokenize", chat(chat_template="x"), (400, "unsupported_parameter", "chat_template")),
        ("/tokenize", chat(continue_final_message=True), (400, "invalid_request", "continue_final_message")),
        (
            "/tokenize",
            chat(chat_template_kwargs={"tools": []}),
            (400, "invalid_request", "chat_template_kwargs.tools"),
        ),
        ("/detokenize", {}, (400, "invalid_request", "tokens")),
        ("/detokenize", {"tokens": "5"}, (400, "invalid_request", "tokens")),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, (400, "invalid_request", "tokens")),
        ("/detokenize", {"tokens": [True]}, (400, "invalid_request", "tokens")),
        ("/detokenize", {"tokens": [5] * (MAX_COUNTED_TOKENS + 1)}, (400, "context_length_exceeded", "tokens")),
        ("/detokenize", {"tokens": [5], "model": "gone"}, (404, "model_not_found", "model")),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    client: httpx.AsyncClient, route: str, body: dict[str, Any], refused: tuple[int, str, str]
) -> None:
    assert await refusal(client, route, **body) == refused


async def test_facts_of_server_and_tokenizer(client: httpx.AsyncClient) -> None:
    info = (await client.get("/tokenizer_info")).json()
    assert "<|assistant|>" in info["chat_template"]
    assert info["tokenizer_class"] == served_model().tokenizer.config["tokenizer_class"]
    assert (await client.get("/tokenizer_info", headers={"authorization": ""})).status_code == 401
    assert list((await client.get("/version", headers={"authorization": ""})).json()) == ["version"]


async def test_who_may_not_use_the_first_model_is_told_nothing_of_its_tokenizer() -> None:
    outside = Tenant(name="t", plan=Plan(models=("acme-*",)))
    for tenant in (outside, replace(outside, plan=Plan(), models=("acme-*",))):
        catalogue = preparation_tools(served_model()).catalogue
        for name in (None, "base", "gone"):
            with pytest.raises(ModelNotFound):
                await tokenizer_info(catalogue, tenant, name)
