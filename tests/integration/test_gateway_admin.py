"""The admin API through a real gateway and a real Redis: roles, declarations, keys, hostile bodies, the audit log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from stratos.core.tenancy.roles import Role
from stratos.rpc.serving.process import serve_async
from stratos.store.keys import KeyTerms
from stratos.store.redis import open_redis
from stratos_gateway.backends import open_backends
from stratos_gateway.service import GatewayService
from stratos_gateway.settings import GatewaySettings
from tests.support.paths import BASE_MODEL
from tests.support.record_stores import PEPPERS, marked_store
from tests.support.waiting import eventually


@dataclass
class Admin:
    """Three callers of one gateway."""

    http: httpx.AsyncClient
    public: httpx.AsyncClient
    keys: dict[str, str]

    async def call(
        self, method: str, path: str, body: Any = None, *, by: str = "admin", **query: str
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[by]}"}
        return await self.http.request(method, f"/admin/v1{path}", json=body, headers=headers, params=query or None)

    async def status(self, key: str) -> int:
        """What a client with this key gets for its models."""
        return (await self.public.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code


@pytest.fixture
async def admin(redis_url: str, tmp_path: Path) -> AsyncIterator[Admin]:
    async with open_redis(redis_url) as redis:
        store = await marked_store(redis, tmp_path / "objects")
        keys = {
            "admin": await store.keys.create_key("platform", "root", terms=KeyTerms(role=Role.ADMIN)),
            "owner": await store.keys.create_key("acme", "owner", terms=KeyTerms(role=Role.TENANT_ADMIN)),
            "user": await store.keys.create_key("acme", "user"),
            "stranger": await store.keys.create_key("other", "owner", terms=KeyTerms(role=Role.TENANT_ADMIN)),
        }
    settings = GatewaySettings(
        http_listen="127.0.0.1:0", admin={"listen": "127.0.0.1:0"}, model={"path": BASE_MODEL},
        router_addresses=("127.0.0.1:9",), redis_url=redis_url, key_pepper=PEPPERS.current, snapshot={"poll_s": 0.02},
        drain_timeout_s=1.0,
    )  # fmt: skip
    service, stop = GatewayService(settings, open_backends), asyncio.Event()
    run = asyncio.create_task(serve_async(service, settings, stop=stop))
    await eventually(lambda: service.address or run.done(), "the gateway listens")
    await eventually(lambda: not service.not_ready_reason(), "tenants and keys are loaded")
    try:
        async with (
            httpx.AsyncClient(base_url=f"http://{service.admin_address}", timeout=20) as http,
            httpx.AsyncClient(base_url=f"http://{service.http_address}", timeout=20) as public,
        ):
            yield Admin(http, public, keys)
    finally:
        stop.set()
        assert await run == 0


async def test_roles_reach_what_is_theirs_and_nothing_else(admin: Admin) -> None:
    found = {}
    for by in admin.keys:
        found[by] = [
            (await admin.call(method, path, body, by=by)).status_code
            for method, path, body in (
                ("GET", "/plans", None),
                ("GET", "/tenants/acme", None),
                ("PUT", "/tenants/acme", {"plan": "premium"}),
                ("GET", "/keys", None),
                ("POST", "/keys", {"tenant": "acme", "role": "admin"}),
                ("POST", "/blocks", {"model": "x"}),
                ("GET", "/declaration", None),
                ("GET", "/audit", None),
            )
        ]
    assert found == {
        "admin": [200] * 8,
        "owner": [403, 200, 403, 200, 403, 403, 403, 200],
        "user": [403] * 8,
        "stranger": [403, 404, 403, 200, 403, 403, 403, 200],
    }
    assert (await admin.http.get("/admin/v1/plans")).status_code == 401
    assert (await admin.public.get("/admin/v1/plans")).status_code == 404, "not on the port of tenants"
    assert (await admin.http.get("/v1/models")).status_code == 404
    shown = (await admin.call("GET", "/keys", by="owner")).json()["data"]
    assert {key["tenant"] for key in shown} == {"acme"}
    assert not any("mac" in key or "cache_salt" in key for key in shown)
    theirs = (await admin.call("GET", "/keys", tenant="acme")).json()["data"][0]["key_id"]
    for method, path in (("DELETE", f"/keys/{theirs}"), ("POST", f"/keys/{theirs}/rotate")):
        assert (await admin.call(method, path, {} if method == "POST" else None, by="stranger")).status_code == 404
    log = (await admin.call("GET", "/audit", by="stranger")).json()["data"]
    assert {entry["tenant"] for entry in log} == {"other"}


async def test_keys_are_made_rotated_suspended_and_revoked(admin: Admin) -> None:
    made = (await admin.call("POST", "/keys", {"name": "app", "models": ["base"]}, by="owner")).json()
    assert made["tenant"] == "acme"
    assert await admin.status(made["key"]) == 200
    path = f"/keys/{made['key_id']}"
    rotated = (await admin.call("POST", f"{path}/rotate", {"overlap_s": 60}, by="owner")).json()["key"]
    assert [await admin.status(key) for key in (made["key"], rotated)] == [200, 200]
    assert (await admin.call("POST", f"{path}/suspend", {}, by="owner")).status_code == 200
    began = asyncio.get_running_loop().time()
    while await admin.status(made["key"]) != 401:
        assert asyncio.get_running_loop().time() - began < 1.0
    assert (await admin.call("DELETE", path, by="owner")).status_code == 200
    assert (await admin.call("POST", f"{path}/resume", {}, by="owner")).status_code == 404


async def test_a_declaration_is_shown_applied_once_and_exported_again(admin: Admin) -> None:
    wanted = {
        "plans": {"gold": {"priority_class": 0, "tokens_per_min": 1000}},
        "tenants": {"acme": {"plan": "gold", "overrides": {"max_n": 2}}, "new": {"suspended": True}},
    }
    dry = (await admin.call("POST", "/declaration", wanted, dry_run="true")).json()
    assert [(c["action"], c["kind"], c["name"]) for c in dry["changes"]] == [
        ("create", "plan", "gold"), ("update", "tenant", "acme"), ("create", "tenant", "new"),
    ]  # fmt: skip
    assert dry["changes"][1]["changes"] == {
        "plan": {"before": "standard", "after": "gold"}, "overrides": {"before": {}, "after": {"max_n": 2}},
    }  # fmt: skip
    assert (await admin.call("GET", "/tenants/new")).status_code == 404, "a dry run changes nothing"
    applied = (await admin.call("POST", "/declaration", wanted)).json()
    assert applied["changes"] == dry["changes"]
    assert (await admin.call("POST", "/declaration", wanted)).json()["changes"] == []
    exported = (await admin.call("GET", "/declaration")).json()
    assert exported["tenants"]["acme"] == {"plan": "gold", "overrides": {"max_n": 2}, "suspended": False}
    assert (await admin.call("POST", "/declaration", exported)).json()["changes"] == []
    log = (await admin.call("GET", "/audit")).json()["data"]
    actor = f"key:{admin.keys['admin'].split('-')[1]}"
    assert [(e["actor"], e["action"], e["id"]) for e in log[-3:]] == [
        (actor, "plan.put", "gold"), (actor, "tenant.put", "acme"), (actor, "tenant.put", "new"),
    ]  # fmt: skip
    assert log[-2]["before"]["plan"] == "standard"
    assert (await admin.call("DELETE", "/plans/gold")).status_code == 400, "acme has it"


async def test_a_suspended_and_a_deleted_tenant_is_refused_within_a_second(admin: Admin) -> None:
    for method, path, status in (
        ("POST", "/tenants/acme/suspend", 403), ("POST", "/tenants/acme/resume", 200), ("DELETE", "/tenants/acme", 401),
    ):  # fmt: skip
        assert (await admin.call(method, path, {} if method == "POST" else None)).status_code == 200
        began = asyncio.get_running_loop().time()
        while await admin.status(admin.keys["user"]) != status:
            assert asyncio.get_running_loop().time() - began < 1.0
    assert (await admin.call("DELETE", "/tenants/platform")).status_code == 400, "not with a key of its own"


HOSTILE: list[tuple[str, str, Any]] = [
    ("PUT", "/plans/gold", {"weight": "9"}),
    ("PUT", "/plans/gold", {"weight": 10**30}),
    ("PUT", "/plans/gold", {"models": ["x" * 300]}),
    ("PUT", "/plans/gold", {"prices": {"8b": {"prompt": -1}}}),
    ("PUT", "/plans/Gold Plan", {}),
    ("PUT", "/plans/gold", []),
    ("PUT", "/tenants/acme", {"plan": "no-such"}),
    ("PUT", "/tenants/acme", {"plan": {"$ne": 1}}),
    ("PUT", "/tenants/acme", {"cache_salt": "00"}),
    ("PUT", "/tenants/acme", {"overrides": {"name": "x"}}),
    ("PUT", "/tenants/a%0Ab", {}),
    ("POST", "/keys", {"tenant": "../x"}),
    ("POST", "/keys", {"name": "x\u0000y"}),
    ("POST", "/keys", {"name": "x" * 300}),
    ("POST", "/keys", {"expires_in_s": -1}),
    ("POST", "/keys", {"expires_in_s": 1e300}),
    ("POST", "/keys", {"expires_in_s": True}),
    ("POST", "/keys", {"networks": ["10.0.0.0/99"]}),
    ("POST", "/keys", {"models": [1]}),
    ("POST", "/keys", {"mac": "ab"}),
    ("POST", "/keys", {"role": "root"}),
    ("POST", "/blocks", {"model": "a", "adapter": "b"}),
    ("POST", "/blocks", {}),
    ("POST", "/declaration", {"tenants": []}),
    ("POST", "/declaration", {"tenants": {"acme": {"overrides": []}}}),
    ("POST", "/declaration", {"tenants": {"acme": None}}),
    ("POST", "/declaration", {"tenants": {"acme": {"plan": "no-such"}}}),
    ("POST", "/declaration", {"plans": {"gold": {"budget": {"hard": 1.5}}}}),
    ("POST", "/declaration", {"keys": {}}),
    ("GET", "/audit?after=0%20COUNT%201", None),
]


async def test_hostile_inputs_are_refused_and_change_nothing(admin: Admin) -> None:
    before = (await admin.call("GET", "/declaration")).json(), len((await admin.call("GET", "/audit")).json()["data"])
    for method, path, body in HOSTILE:
        answer = await admin.call(method, path, body)
        assert answer.status_code == 400, (method, path, body, answer.text)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    for content in (b"", b"{", b"null", b"\xff", b'{"a":' * 5000, json.dumps({"name": "x" * 5_000_000}).encode()):
        headers = {"authorization": f"Bearer {admin.keys['admin']}", "content-type": "application/json"}
        answer = await admin.http.post("/admin/v1/declaration", content=content, headers=headers)
        assert answer.status_code in ((200,) if not content else (400, 413)), content[:20]
    after = (await admin.call("GET", "/declaration")).json(), len((await admin.call("GET", "/audit")).json()["data"])
    assert before == after
