"""The model ``auto`` at two gateways of one store: chosen by rules, the same one for a session, billed as itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import Overloaded
from stratos.core.placement import WorkerRole
from tests.integration.gateway.models.test_added_models import Added, added_worlds
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld

RULES: dict[str, Any] = {
    "default": "base",
    "rules": [
        {"name": "code", "keywords": ["python"], "task": "code", "at_least": 0.5},
        {"name": "short", "max_chars": 12, "models": ["base", "small"]},
    ],
    "scores": {"code": {"small": 0.2, "base": 0.8}},
}
LOW, HIGH = {"prompt": 1, "output": 1}, {"prompt": 100, "output": 100}


@pytest.fixture
async def added(redis_url: str, tmp_path: Path) -> AsyncIterator[Added]:
    """Two gateways that serve ``base``, and ``small``, which costs less."""
    async with AsyncExitStack() as stack:
        found = await added_worlds(stack, redis_url, tmp_path)
        assert (await found.one.call("PUT", "/plans/paid", {"prices": {"tiny": LOW, "default": HIGH}})).is_success
        assert (await found.one.call("PUT", "/tenants/acme", {"plan": "paid"})).is_success
        answer = await found.one.call("POST", "/models", {**found.bodies[0], "size": "tiny"})
        assert answer.is_success, answer.text
        for world in (found.one, found.two):
            await eventually(lambda world=world: _has(found, world, "small"), "it is served")
            world.router.live = {found.bodies[0]["digest"]: {WorkerRole.DECODE: 1}}
        yield found


async def _has(added: Added, world: AdminWorld, name: str) -> bool:
    return name in await added.ids(world)


async def put(added: Added, rules: dict[str, Any] = RULES, name: str = "auto") -> None:
    answer = await added.one.call("PUT", f"/choices/{name}", rules)
    assert answer.is_success, answer.text
    for world in (added.one, added.two):
        await eventually(lambda world=world: _has(added, world, "auto"), "both gateways have read them")


async def test_the_cheapest_model_that_is_good_enough_answers_and_says_so(added: Added) -> None:
    assert (await added.ask(added.one, "auto", prompt="hi")).status_code == 404
    await put(added)
    for world in (added.one, added.two):
        for prompt, model, rule in (
            ("hi", "small", "short"),
            ("python", "base", "code"),
            ("a text of some length", "base", "default"),
        ):
            answer = await added.ask(world, "auto", prompt=prompt)
            assert answer.status_code == 200, answer.text
            assert (answer.json()["model"], answer.headers["x-stratos-model"]) == (model, model)
            assert answer.headers["x-stratos-model-rule"] == rule
            found = await receipt(added, world, answer.headers["x-request-id"])
            assert found["choice"]["rule"] == rule
            assert found["request"]["model"] == model
        counted = world.service.metrics.get_sample_value
        for model, reason in (("small", "rule"), ("base", "rule"), ("base", "default")):
            assert counted("stratos_auto_answers_total", {"model": model, "reason": reason}) == 1


async def receipt(added: Added, world: AdminWorld, request_id: str) -> dict[str, Any]:
    headers, found = {"authorization": f"Bearer {added.one.keys['user']}"}, dict[str, Any]()

    async def is_there() -> bool:
        answer = await world.public.get(f"/v1/requests/{request_id}/receipt", headers=headers)
        found.update(answer.json() if answer.is_success else {})
        return answer.is_success

    await eventually(is_there, "the receipt")
    return found


async def test_a_session_has_one_model_at_all_gateways_and_the_next_one_where_that_has_no_room(added: Added) -> None:
    await put(added)
    first = await added.ask(added.one, "auto", prompt="hi", user="s")
    assert first.is_success, first.text
    assert first.json()["model"] == "small"
    dearer = {"prices": {"tiny": HIGH, "default": LOW}}
    assert (await added.one.call("PUT", "/plans/paid", dearer)).is_success
    await eventually(lambda: _answers(added, "base"), "base costs less now")
    for world in (added.two, added.one):
        assert (await added.ask(world, "auto", prompt="hi", user="s")).json()["model"] == "small"
    added.two.router.errors = [Overloaded("full")]
    answer = await added.ask(added.two, "auto", prompt="hi", user="s")
    assert (answer.json()["model"], answer.headers["x-stratos-model-refused"]) == ("base", "small=overloaded")


async def _answers(added: Added, model: str) -> bool:
    found = {(await added.ask(world, "auto", prompt="hi")).json()["model"] for world in (added.one, added.two)}
    return found == {model}


async def test_the_switch_and_a_tenants_own_rules_hold_at_every_gateway(added: Added) -> None:
    await put(added)
    assert (await added.two.call("POST", "/choices/auto/off")).json()["is_on"] is False
    await eventually(lambda: _answers(added, "base"), "all go to the default")
    assert (await added.two.call("POST", "/choices/auto/on")).json()["is_on"] is True
    await eventually(lambda: _answers(added, "small"), "rules choose again")
    await put(added, {"default": "base"}, "acme/auto")
    await eventually(lambda: _answers(added, "base"), "the tenant has rules of its own")
    assert [row["name"] for row in (await added.one.call("GET", "/choices")).json()["data"]] == ["acme/auto", "auto"]
    assert (await added.two.call("DELETE", "/choices/acme/auto")).is_success
    await eventually(lambda: _answers(added, "small"), "it has those of all again")
    acts = [e["action"] for e in (await added.one.call("GET", "/audit")).json()["data"] if e["kind"] == "choice"]
    assert acts == ["choice.set", "choice.off", "choice.on", "choice.set", "choice.remove"]


async def test_a_prompt_too_long_for_the_cheapest_model_goes_to_the_next_one(added: Added) -> None:
    [small, _] = added.bodies
    assert (await added.one.call("POST", "/models", {**small, "max_input_tokens": 2})).is_success
    await put(added, {"default": "base", "rules": [{"name": "all", "models": ["small", "base"]}]})
    for world in (added.one, added.two):
        await eventually(lambda world=world: _refuses(added, world), "small takes two tokens")
        answer = await added.ask(world, "auto", prompt=[5, 6, 7])
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-stratos-model-refused"] == "small=context_length_exceeded"


async def _refuses(added: Added, world: AdminWorld) -> bool:
    return (await added.ask(world, "small", prompt=[5, 6, 7])).status_code == 400


async def test_a_key_gets_no_model_that_it_may_not_use(added: Added) -> None:
    await put(added)
    made = await added.one.call("POST", "/keys", {"tenant": "acme", "name": "narrow", "models": ["base"]})
    headers = {"authorization": f"Bearer {made.json()['key']}"}
    await added.two.refused_with(made.json()["key"], 200)
    answer = await added.two.public.post("/v1/completions", json={"model": "auto", "prompt": "hi"}, headers=headers)
    assert (answer.status_code, answer.json()["model"]) == (200, "base"), answer.text
    [listed] = [
        row for row in (await added.two.public.get("/v1/models", headers=headers)).json()["data"] if row["id"] == "auto"
    ]
    assert listed["chosen"] == ["base"]


async def test_what_cannot_be_is_refused_at_the_edge(added: Added) -> None:
    table: list[tuple[str, str, Any, int]] = [
        ("PUT", "/choices/auto", {"default": "unknown"}, 400),
        ("PUT", "/choices/smart", {"default": "base"}, 400),
        ("PUT", "/choices/nowhere/auto", {"default": "base"}, 404),
        ("POST", "/choices/auto/off", None, 404),
        ("POST", "/choices/auto/up", None, 404),
        ("DELETE", "/choices/auto", None, 404),
        ("PUT", "/aliases/auto", {"targets": [{"model": "base"}]}, 400),
        ("POST", "/models", {**added.bodies[1], "name": "auto"}, 400),
    ]
    for method, path, body, status in table:
        answer = await added.one.call(method, path, body)
        assert answer.status_code == status, (path, answer.text)
    await put(added)
    for more in ({"background": True}, {"continuation_token": "x"}):  # these are of one model
        own = {"authorization": f"Bearer {added.one.keys['user']}"}
        answer = await added.one.public.post("/v1/responses", json={"model": "auto", "input": "x", **more}, headers=own)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model"), answer.text
