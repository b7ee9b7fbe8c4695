"""Policies and templates from the admin API through a real Redis to what tenants get from a gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld, admin_world

POLICY = {"words": {"names": ["blue heron"]}, "replacement": "[cut]"}
TEMPLATE = {"versions": {"1": {"text": "Hello {{ name }}", "defaults": {"name": "you"}}}}
WANTED: dict[str, Any] = {
    "policies": {"careful": POLICY},
    "templates": {
        "acme/greet": TEMPLATE,
        "shared": {"versions": {"2": {"messages": [{"role": "user", "text": "Hi"}]}}},
    },
    "plans": {"gold": {"content_policy": "careful"}},
    "tenants": {"acme": {"plan": "gold"}, "other": {"overrides": {"content_policy": "careful"}}},
}


@pytest.fixture
async def admin(redis_url: str, tmp_path: Path) -> AsyncIterator[AdminWorld]:
    async with admin_world(redis_url, tmp_path) as found:
        yield found


async def answer_to(admin: AdminWorld, prompt: object, by: str = "user") -> tuple[int, str]:
    body = {"model": "base", "prompt": prompt, "max_tokens": 2}
    headers = {"authorization": f"Bearer {admin.keys[by]}"}
    answer = await admin.public.post("/v1/completions", json=body, headers=headers)
    return answer.status_code, answer.json().get("error", {}).get("code", "")


async def test_what_is_declared_acts_at_the_gateways_and_is_exported(admin: AdminWorld) -> None:
    dry = (await admin.call("POST", "/declaration", WANTED, dry_run="true")).json()["changes"]
    assert [(c["kind"], c["name"]) for c in dry] == [
        ("policy", "careful"), ("plan", "gold"), ("tenant", "acme"), ("tenant", "other"),
        ("template", "acme/greet"), ("template", "shared"),
    ]  # fmt: skip
    assert (await admin.call("GET", "/policies")).json()["data"] == []
    assert (await admin.call("POST", "/declaration", WANTED)).json()["changes"] == dry

    async def is_refused() -> bool:
        return await answer_to(admin, "the Blue Heron flies") == (400, "content_filter")

    await eventually(is_refused, "the policy acts")
    assert await answer_to(admin, "blue herons") == (200, "")
    assert await answer_to(admin, {"id": "greet"}) == (200, "")
    assert await answer_to(admin, {"id": "greet", "variables": {"name": "blue heron"}}) == (400, "content_filter")
    assert await answer_to(admin, {"id": "greet"}, by="stranger") == (404, "prompt_not_found")
    exported = (await admin.call("GET", "/declaration")).json()
    assert exported["templates"]["acme/greet"]["versions"]["1"]["text"] == "Hello {{ name }}"
    assert (await admin.call("POST", "/declaration", exported)).json()["changes"] == []
    changed = {"policies": {"careful": {**POLICY, "words": {"names": ["kestrel"]}}}}
    assert (await admin.call("POST", "/declaration", changed)).status_code == 200

    async def is_taken() -> bool:
        return await answer_to(admin, "the Blue Heron flies") == (200, "")

    await eventually(is_taken, "the changed policy acts")


async def test_versions_never_change_and_what_is_in_use_stays(admin: AdminWorld) -> None:
    assert (await admin.call("POST", "/declaration", WANTED)).status_code == 200
    other = {"versions": {"1": {"text": "Bye {{ name }}"}}}
    assert (await admin.call("PUT", "/templates/acme/greet", other)).status_code == 400
    assert (await admin.call("POST", "/declaration", {"templates": {"acme/greet": other}})).status_code == 400
    added = {"versions": {"7": {"text": "Bye"}}}
    versions = (await admin.call("PUT", "/templates/acme/greet", added)).json()["versions"]
    assert list(versions) == ["1", "7"]
    assert (await admin.call("DELETE", "/policies/careful")).status_code == 400, "a plan and a tenant have it"
    assert (await admin.call("PUT", "/policies/loose", {})).status_code == 200
    assert (await admin.call("DELETE", "/policies/loose")).status_code == 200
    assert (await admin.call("DELETE", "/policies/loose")).status_code == 404
    assert (await admin.call("DELETE", "/templates/shared")).status_code == 200
    assert (await admin.call("DELETE", "/tenants/acme")).status_code == 200
    left = (await admin.call("GET", "/templates")).json()["data"]
    assert left == [], "a tenant's templates go with it"
    log = (await admin.call("GET", "/audit")).json()["data"]
    assert {"policy.put", "policy.delete", "template.put", "template.delete"} <= {entry["action"] for entry in log}


async def test_an_owner_sees_in_its_audit_log_what_the_platform_took_away(admin: AdminWorld) -> None:
    block = {"adapter": "tone", "tenant": "acme"}
    for method, path, body in (
        ("PUT", "/templates/acme/greet", TEMPLATE),
        ("DELETE", "/templates/acme/greet", None),
        ("POST", "/blocks", block),
        ("DELETE", "/blocks", block),
    ):
        assert (await admin.call(method, path, body)).status_code == 200
    seen = {
        by: [entry["action"] for entry in (await admin.call("GET", "/audit", by=by)).json()["data"]]
        for by in ("owner", "stranger")
    }
    assert seen["owner"][-4:] == ["template.put", "template.delete", "block.put", "block.delete"]
    assert not {"template.delete", "block.delete"} & set(seen["stranger"])


HOSTILE: list[tuple[str, Any]] = [
    ("/policies/careful", {"patterns": {"a": "("}}),
    ("/policies/careful", {"patterns": {"a": "a*"}}),
    ("/policies/careful", {"patterns": {"a": "(?:x{1000}){1000}"}}),
    ("/policies/careful", {"patterns": {"../a": "b"}}),
    ("/policies/careful", {"words": {"a": [""]}}),
    ("/policies/careful", {"words": {"a": ["x" * 65]}}),
    ("/policies/careful", {"words": {"a": "x"}}),
    ("/policies/careful", {"shipped": ["all"]}),
    ("/policies/careful", {"window_chars": 10**9}),
    ("/policies/careful", {"fails_open": "yes"}),
    ("/policies/careful", {"extra": 1}),
    ("/policies/UPPER", {}),
    ("/templates/acme/greet", {"versions": {}}),
    ("/templates/acme/greet", {"versions": {"0": {"text": "a"}}}),
    ("/templates/acme/greet", {"versions": {"x": {"text": "a"}}}),
    ("/templates/acme/greet", {"versions": {"1": {}}}),
    ("/templates/acme/greet", {"versions": {"1": {"text": "a", "messages": [{"role": "user", "text": "a"}]}}}),
    ("/templates/acme/greet", {"versions": {"1": {"messages": [{"role": "root", "text": "a"}]}}}),
    ("/templates/acme/greet", {"versions": {"1": {"text": "{{ x.__class__() }}"}}}),
    ("/templates/acme/greet", {"versions": {"1": {"text": "{{ 9 ** 9 ** 9 }}"}}}),
    ("/templates/acme/greet", {"versions": {"1": {"text": "{{ x }}", "defaults": {"y": 1}}}}),
    ("/templates/acme/greet", {"versions": {"1": {"text": "{{ x }}", "defaults": {"x": "a" * 70_000}}}}),
    ("/templates/a/b/c", {"versions": {"1": {"text": "a"}}}),
    ("/templates//c", {"versions": {"1": {"text": "a"}}}),
    ("/plans/gold", {"content_policy": "nope"}),
    ("/tenants/acme", {"overrides": {"content_policy": "nope"}}),
]


async def test_hostile_bodies_are_refused_and_change_nothing(admin: AdminWorld) -> None:
    for path, body in HOSTILE:
        answer = await admin.call("PUT", path, body)
        assert answer.status_code == 400, (path, str(body)[:80], answer.text)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    for by in ("owner", "user", "stranger"):
        for path in ("/policies/careful", "/templates/acme/greet"):
            assert (await admin.call("PUT", path, {}, by=by)).status_code == 403
    stored = (await admin.call("GET", "/declaration")).json()
    assert (stored["policies"], stored["templates"], stored["plans"]) == ({}, {}, {})
