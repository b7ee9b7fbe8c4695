"""The admin API through a real gateway and a real Redis: roles, declarations, keys, hostile bodies, the audit log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratos.store.redis import open_redis
from tests.support.promises import Promised
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld, admin_world
from tests.support.worlds.gateway_world import say


@pytest.fixture
async def admin(redis_url: str, tmp_path: Path) -> AsyncIterator[AdminWorld]:
    async with admin_world(redis_url, tmp_path) as world:
        yield world


async def test_roles_reach_what_is_theirs_and_nothing_else(admin: AdminWorld) -> None:
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


async def test_keys_are_made_rotated_suspended_and_revoked(admin: AdminWorld, promised: Promised) -> None:
    made = (await admin.call("POST", "/keys", {"name": "app", "models": ["base"]}, by="owner")).json()
    assert made["tenant"] == "acme"
    assert await admin.status(made["key"]) == 200
    path = f"/keys/{made['key_id']}"
    rotated = (await admin.call("POST", f"{path}/rotate", {"overlap_s": 60}, by="owner")).json()["key"]
    assert [await admin.status(key) for key in (made["key"], rotated)] == [200, 200]
    assert (await admin.call("POST", f"{path}/suspend", {}, by="owner")).status_code == 200
    with promised("a suspended key is refused", 1.0):
        await admin.refused_with(made["key"], 401)
    assert (await admin.call("DELETE", path, by="owner")).status_code == 200
    assert (await admin.call("POST", f"{path}/resume", {}, by="owner")).status_code == 404


async def test_a_declaration_is_shown_applied_once_and_exported_again(admin: AdminWorld) -> None:
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


async def test_a_suspended_and_a_deleted_tenant_is_refused_within_a_second(
    admin: AdminWorld, promised: Promised
) -> None:
    for method, path, status in (
        ("POST", "/tenants/acme/suspend", 403), ("POST", "/tenants/acme/resume", 200), ("DELETE", "/tenants/acme", 401),
    ):  # fmt: skip
        assert (await admin.call(method, path, {} if method == "POST" else None)).status_code == 200
        with promised(f"every key of a tenant gets {status} after {method} {path}", 1.0):
            await admin.refused_with(admin.keys["user"], status)
    assert (await admin.call("DELETE", "/tenants/platform")).status_code == 400, "not with a key of its own"
    suspended, whole = {"suspended": True}, {"tenants": {"other": {}, "platform": {"suspended": True}}}
    for method, path, body in (
        ("POST", "/tenants/platform/suspend", {}), ("PUT", "/tenants/platform", suspended),
        ("POST", "/declaration", whole), ("POST", "/declaration?dry_run=true", whole),
    ):  # fmt: skip
        assert (await admin.call(method, path, body)).status_code == 400, f"{path}: it would lock itself out"


async def test_calls_of_a_tenant_have_a_rate_and_those_of_the_platform_have_none(
    redis_url: str, tmp_path: Path
) -> None:
    own = {"listen": "127.0.0.1:0", "calls_per_min": 1}
    async with admin_world(redis_url, tmp_path, admin=own) as admin:
        statuses = Counter([(await admin.call("GET", "/tenants", by="owner")).status_code for _ in range(62)])
        assert statuses == {200: 60, 429: 2}
        refused = await admin.call("GET", "/keys", by="owner")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(refused.headers["retry-after"]) > 30
        for by in ("admin", "stranger"):
            assert (await admin.call("GET", "/keys", by=by)).status_code == 200, "another tenant, or none"


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
    ("GET", "/audit?after=" + "9" * 25, None),
    ("GET", "/audit?after=%D9%A2", None),
    ("GET", "/usage?start=2026-02-30", None),
    ("GET", "/usage?start=0001-01-01&end=9999-12-31", None),
    ("GET", "/usage?group_by=tenant", None),
    ("GET", "/usage?tenant=*", None),
    ("GET", "/usage?tenant=acme%3A2026-11-22", None),
    ("GET", "/ledger", None),
    ("GET", "/ledger?day=today", None),
    ("GET", "/ledger?day=2026-11-22&cursor=-1", None),
    ("GET", "/ledger?day=2026-11-22&cursor=0%20COUNT%201", None),
    ("GET", "/ledger?day=2026-11-22&cursor=" + "9" * 30, None),
    ("GET", "/statement?month=2026-13", None),
    ("GET", "/statement?month=%D9%A2%D9%A0%D9%A2%D9%A6-11", None),
    ("GET", "/statement?month=2026-11&tenant=a%00b", None),
    ("GET", "/costs?month=2026-11&hour_price=1.5", None),
    ("GET", "/costs?month=2026-11&hour_price=%D9%A2", None),
    ("GET", "/costs?month=2026-11&paid_hours=1e9", None),
]


async def test_hostile_inputs_are_refused_and_change_nothing(admin: AdminWorld) -> None:
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


ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**25, -(10**25), "", "x", "acme", "base", "premium", "\u0000", "a/b", "../x",
    "*" * 300, "\u202e", "admin", [], {}, [None], ["*"], [["acme"]], {"": 0}, {"plan": "premium"}, {"$ne": 1},
    {"acme": {}},
]  # fmt: skip
"""Values that a field may have in place of what it should."""
FIELDS = [
    "tenant", "name", "plan", "role", "models", "networks", "expires_in_s", "overlap_s", "overrides", "suspended",
    "weight", "prices", "budget", "plans", "tenants", "policies", "templates", "model", "adapter", "reason", "shipped",
    "versions", "mac",
]  # fmt: skip
PATHS = [
    ("GET", "/plans"), ("PUT", "/plans/{}"), ("DELETE", "/plans/{}"), ("GET", "/tenants/{}"), ("PUT", "/tenants/{}"),
    ("POST", "/tenants/{}/suspend"), ("POST", "/tenants/{}/{}"), ("POST", "/keys"), ("DELETE", "/keys/{}"),
    ("POST", "/keys/{}/rotate"), ("POST", "/keys/{}/{}"), ("POST", "/blocks"), ("DELETE", "/blocks"), ("GET", "/audit"),
    ("GET", "/usage"), ("GET", "/ledger"), ("GET", "/ledger/tenants"), ("GET", "/statement"), ("GET", "/costs"),
    ("POST", "/declaration"), ("PUT", "/policies/{}"), ("PUT", "/templates/{}"), ("DELETE", "/templates/{}/{}"),
]  # fmt: skip
QUERY = ["after", "tenant", "month", "day", "start", "end", "cursor", "group_by", "hour_price", "paid_hours"]
PERIODS = ["2026-11", "2026-11-22", "0", "9" * 18, "model,day"]
NAMES = ["gold", "other", "{key}", "x" * 200, "%00", "%2e%2e", "a%2Fb", "resume", "\u00e9", "-1", "%"]


def body_of(random: Random, depth: int = 2) -> Any:
    """An object of known and unknown fields with odd values, or something else altogether."""
    if random.random() < 0.1:
        return random.choice(ODD)
    names = random.sample([*FIELDS, "unknown", ""], random.randint(0, 4))
    return {n: body_of(random, depth - 1) if depth and random.random() < 0.3 else random.choice(ODD) for n in names}


def keys_in(value: Any) -> Iterator[str]:
    """Names of the fields of an answer, at any depth."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys_in(inner)
    if isinstance(value, dict):
        yield from value


async def test_no_request_finds_a_bug_or_shows_a_secret_or_lets_a_tenant_write(admin: AdminWorld) -> None:
    random, statuses = Random(12), Counter[tuple[str, int]]()
    own = admin.keys["stranger"].split("-")[1]
    for _ in range(250):
        method, path = random.choice(PATHS)
        path = path.format(*(random.choice(NAMES).replace("{key}", own) for _ in range(2)))
        by = random.choice(["admin", "owner", "user"])
        query = {name: str(random.choice([*ODD, *PERIODS])) for name in QUERY if random.random() < 0.2}
        answer = await admin.call(method, path, body_of(random), by=by, **query)
        statuses[by, answer.status_code] += 1
        assert answer.status_code in (200, 400, 403, 404, 405), (method, path, answer.text)
        assert not {"cache_salt", "mac"} & set(keys_in(answer.json()))
    assert {status for by, status in statuses if by == "user"} <= {403, 404, 405}
    assert statuses["admin", 200] > 10 < statuses["admin", 400], "both kinds of requests are tried"
    log = (await admin.call("GET", "/audit")).json()["data"]
    user = f"key:{admin.keys['user'].split('-')[1]}"
    assert user not in {entry["actor"] for entry in log}
    owner = f"key:{admin.keys['owner'].split('-')[1]}"
    assert {entry["tenant"] for entry in log if entry["actor"] == owner} <= {"acme"}


async def test_the_ledger_of_a_deleted_tenant_is_kept_by_its_id_and_is_not_that_of_the_next_one(
    admin: AdminWorld,
) -> None:
    admin.worker.script = say("hello")
    body = {"model": "base", "prompt": [5, 6, 7], "max_tokens": 9}

    async def ask(key: str) -> None:
        answer = await admin.public.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200

    async def num_requests(tenant: str, by: str = "admin") -> int:
        answer = await admin.call("GET", "/usage", by=by, tenant=tenant)
        num: int = answer.json()["total"]["requests"]
        return num

    async def has(tenant: str, num: int) -> bool:
        return await num_requests(tenant) == num

    await ask(admin.keys["user"])
    await eventually(lambda: has("acme", 1), "the request is in the ledger")
    (old,) = (await admin.call("GET", "/ledger/tenants")).json()["data"]
    assert old == {"id": (await admin.call("GET", "/tenants/acme")).json()["id"], "name": "acme"}
    assert (await admin.call("DELETE", "/tenants/acme")).json()["ledger"] == old["id"]
    assert (await admin.call("DELETE", "/tenants/acme")).status_code == 404
    made = await admin.call("POST", "/keys", {"tenant": "acme", "role": "tenant-admin"})
    admin.keys["next"] = made.json()["key"]
    await eventually(lambda: has("acme", 0), "the next tenant has used nothing")
    await ask(admin.keys["next"])
    await eventually(lambda: has("acme", 1), "its own request is in its ledger")
    assert [await num_requests(old["id"]), await num_requests("acme", by="next")] == [1, 1]
    assert (await admin.call("GET", "/usage", by="next", tenant=old["id"])).status_code == 404
    names = (await admin.call("GET", "/ledger/tenants")).json()["data"]
    assert sorted(entry["name"] for entry in names) == ["", "acme"]


async def test_a_key_makes_none_that_may_do_what_it_may_not_do_itself(admin: AdminWorld) -> None:
    bound = {"role": "tenant-admin", "models": ["base", "acme-*"], "networks": ["127.0.0.0/8"], "expires_in_s": 600}
    admin.keys["bound"] = (await admin.call("POST", "/keys", {"tenant": "acme", **bound})).json()["key"]
    await admin.refused_with(admin.keys["bound"], 200)
    for wider in (
        {"role": "admin"}, {"models": ["*"]}, {"models": ["base", "other"]}, {"models": ["a*"]}, {"networks": []},
        {"networks": ["126.0.0.0/7"]}, {"networks": ["127.0.0.1", "10.0.0.1"]}, {"networks": ["::1"]},
        {"expires_in_s": 700},
    ):  # fmt: skip
        assert (await admin.call("POST", "/keys", wider, by="bound")).status_code == 403, wider
    owned = {key["key_id"]: key for key in (await admin.call("GET", "/keys", by="bound")).json()["data"]}
    wide = next(key_id for key_id, key in owned.items() if key["name"] == "user")
    assert (await admin.call("POST", f"/keys/{wide}/rotate", {}, by="bound")).status_code == 403
    within = {"models": ["acme-1"], "networks": ["127.0.0.1"], "expires_in_s": 60}
    assert (await admin.call("POST", "/keys", within, by="bound")).status_code == 200
    made = (await admin.call("POST", "/keys", {"name": "plain"}, by="bound")).json()["key_id"]
    listed = {key["key_id"]: key for key in (await admin.call("GET", "/keys", by="bound")).json()["data"]}
    maker = listed[admin.keys["bound"].split("-")[1]]
    inherited = ("models", "networks", "expires_unix_s")
    assert [listed[made][name] for name in inherited] == [maker[name] for name in inherited]


async def test_a_rotation_keeps_every_limit_and_the_platforms_suspension_stays(admin: AdminWorld) -> None:
    body = {"name": "app", "expires_in_s": 600, "models": ["base"]}
    made = (await admin.call("POST", "/keys", body, by="owner")).json()["key_id"]
    assert (await admin.call("POST", f"/keys/{made}/suspend", {})).status_code == 200
    assert (await admin.call("POST", f"/keys/{made}/suspend", {}, by="owner")).status_code == 200
    assert (await admin.call("POST", f"/keys/{made}/resume", {}, by="owner")).status_code == 403
    after = (await admin.call("POST", f"/keys/{made}/rotate", {"overlap_s": 60}, by="owner")).json()
    assert await admin.status(after["key"]) == 401, "a rotation is no way out of a suspension"
    assert (await admin.call("POST", f"/keys/{after['key_id']}/resume", {}, by="owner")).status_code == 403
    listed = {key["key_id"]: key for key in (await admin.call("GET", "/keys")).json()["data"]}
    old, new = listed[made], listed[after["key_id"]]
    assert new["models"] == ["base"]
    assert old["expires_unix_s"] < new["expires_unix_s"], "the overlap ends the old one"
    assert (await admin.call("POST", f"/keys/{after['key_id']}/resume", {})).status_code == 200
    await admin.refused_with(after["key"], 200)
    assert (await admin.call("POST", f"/keys/{after['key_id']}/suspend", {}, by="owner")).status_code == 200
    assert (await admin.call("POST", f"/keys/{after['key_id']}/resume", {}, by="owner")).status_code == 200


@pytest.mark.parametrize("is_emptied", [False, True], ids=["foreign", "emptied"])
async def test_a_store_that_is_not_ours_is_neither_written_nor_shown(
    admin: AdminWorld, redis_url: str, is_emptied: bool
) -> None:
    """Another installation's Redis, with tenants and keys of equal names, in the place of the one that is followed."""
    async with open_redis(redis_url) as redis:
        if is_emptied:
            await redis.flushall()
        else:
            await redis.hset("stratos:store", "id", "another-store")
        before = {name: await redis.dump(name) for name in await redis.keys()}
        user = {"authorization": f"Bearer {admin.keys['user']}"}
        for method, path in PATHS:
            body = {} if method in ("PUT", "POST") else None
            answer = await admin.call(method, path.format("acme", "x"), body)
            assert answer.status_code == 503, (method, path, answer.text)
        for path in ("/tenants", "/keys", "/audit", "/usage", "/statement?month=2026-11"):
            assert (await admin.call("GET", path, by="owner")).status_code == 503, path
        assert (await admin.public.get("/v1/usage", headers=user)).status_code == 503
        assert (await admin.public.get("/v1/requests/x/receipt", headers=user)).status_code == 503
        assert await admin.status(admin.keys["user"]) == 200, "serving goes on"
        assert {name: await redis.dump(name) for name in await redis.keys()} == before


async def test_the_next_tenant_of_a_name_sees_nothing_of_the_one_before(admin: AdminWorld) -> None:
    await admin.call("PUT", "/tenants/acme", {"plan": "premium", "overrides": {"max_n": 2}})
    made = (await admin.call("POST", "/keys", {"name": "secret project"}, by="owner")).json()["key_id"]
    await admin.call("DELETE", f"/keys/{made}", by="owner")
    assert (await admin.call("DELETE", "/tenants/acme")).status_code == 200
    stray = await admin.call("POST", "/keys", {"name": "stray"}, by="owner")
    assert stray.status_code in (401, 404), stray.text
    assert (await admin.call("GET", "/tenants/acme")).status_code == 404
    body = {"tenant": "acme", "name": "next", "role": "tenant-admin"}
    admin.keys["next"] = (await admin.call("POST", "/keys", body)).json()["key"]
    await admin.refused_with(admin.keys["owner"], 401)
    assert [k["name"] for k in (await admin.call("GET", "/keys", by="next")).json()["data"]] == ["next"]
    (tenant,) = (await admin.call("GET", "/tenants", by="next")).json()["data"]
    assert (tenant["plan"], tenant["overrides"]) == ("standard", {})
    log = (await admin.call("GET", "/audit", by="next")).json()["data"]
    assert [(entry["action"], entry["tenant_id"]) for entry in log] == [
        ("tenant.create", tenant["id"]), ("key.create", tenant["id"]),
    ]  # fmt: skip
    whole = (await admin.call("GET", "/audit")).json()["data"]
    assert {"tenant.close", "tenant.delete"} <= {entry["action"] for entry in whole if entry["tenant"] == "acme"}
