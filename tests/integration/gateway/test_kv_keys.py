"""Keys for KV on disk go to workers that have a disk, and to no others; router, stores and logs never see one."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace

import pytest

from stratos.core.features import Feature
from stratos.core.tenancy.plan import CachePolicy
from stratos.core.tenant import Tenant
from stratos.store.data_keys import Purpose
from stratos_gateway.preparation.kv_keys import kv_keys
from tests.support.worlds.gateway_world import gateway_world

BODY = {"model": "base", "prompt": "the quick brown fox", "max_tokens": 4}


@pytest.mark.parametrize("has_disk", [True, False])
async def test_a_key_goes_to_a_worker_with_a_disk_and_to_no_other(
    has_disk: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with gateway_world() as world:
        world.worker.features = frozenset(Feature) - (frozenset() if has_disk else {Feature.KV_KEYS})
        answer = await world.http.post("/v1/completions", json=BODY)
        assert answer.status_code == 200, answer.text
        terms = world.worker.submits[-1].terms
        key = hashlib.sha256(f"{terms.tenant} {Purpose.KV_ON_DISK}".encode()).digest()
        assert terms.kv_key == (key if has_disk else b"")
        assert key.hex() not in caplog.text
        assert repr(key) not in caplog.text


def test_the_router_and_prints_get_no_key() -> None:
    terms = replace(Tenant(name="t").terms(), kv_key=b"secret" * 5 + b"12")
    assert terms.for_router().kv_key == b""
    assert "secret" not in repr(terms)


@pytest.mark.parametrize("policy", list(CachePolicy))
def test_a_plan_that_shares_no_kv_has_none_on_disk(policy: CachePolicy) -> None:
    tenant = Tenant(name="t", id="t1")
    tenant = replace(tenant, plan=replace(tenant.plan, cache_policy=policy))
    asked: list[tuple[str, Purpose]] = []

    def find(tenant_id: str, purpose: Purpose) -> bytes | None:
        asked.append((tenant_id, purpose))
        return b"k" * 32

    assert kv_keys(find)(tenant) == (b"" if policy is CachePolicy.OFF else b"k" * 32)
    assert asked == ([] if policy is CachePolicy.OFF else [("t1", Purpose.KV_ON_DISK)])
    assert kv_keys(lambda *_: None)(tenant) == b""
