"""The drill: Redis loses everything under a running platform."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis

from stratos.cli.adapters import AdapterTarget, delete_adapter, register_adapter
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.keyring import create_key, revoke_key
from stratos.cli.local.running import find_platform
from stratos.common.errors import DependencyDown
from stratos.store.keys import mint_key, parse_key
from tests.support.paths import SHIPPED_ADAPTERS
from tests.support.promises import Promised
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import PlatformProcess

REFUSED_WITHIN_S = 1.0


class Drill:
    """A platform, as its operator and its tenants use it."""

    def __init__(self, platform: PlatformProcess) -> None:
        self.platform = platform
        self.facts: PlatformFacts = find_platform(platform.data_dir, platform.run_id)
        self.adapter = self.facts.adapters[0]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def new_key(self, tenant: str) -> str:
        return str(self.run(create_key(self.facts, self.platform.data_dir, tenant=tenant, name="drill", plan="local")))

    def complete(self, key: str, model: str) -> str:
        client = openai.OpenAI(base_url=self.facts.base_url, api_key=key, max_retries=0, timeout=LIMIT_S)
        with client:
            return client.completions.create(model=model, prompt="def f(", max_tokens=4, temperature=0).choices[0].text

    def status_of(self, key: str, model: str) -> int:
        try:
            self.complete(key, model)
        except openai.APIStatusError as error:
            return error.status_code
        return 200

    def is_state(self, state: str) -> bool:
        """Whether every gateway's snapshot is in a state."""
        gateways = [p for name, p in self.platform.processes().items() if name.startswith("gateway")]
        pages = [
            httpx.get(f"http://{gateway['metrics_address']}/metrics", timeout=LIMIT_S).text for gateway in gateways
        ]
        return all(f'stratos_snapshot_state{{state="{state}"}} 1.0' in page for page in pages)

    def refuses(self, write: Callable[[], object], promised: Promised) -> None:
        with (
            promised("a write to a store that has lost its records is refused", REFUSED_WITHIN_S),
            pytest.raises(DependencyDown, match="adopt-store"),
        ):
            write()


def test_an_emptied_redis_costs_no_tenant_and_comes_back_whole(
    real_platform: PlatformProcess, tmp_path: Path, promised: Promised
) -> None:
    drill = Drill(real_platform)
    facts, data_dir = drill.facts, real_platform.data_dir
    kept, revoked = drill.new_key("kept"), drill.new_key("revoked")
    target = AdapterTarget.of(facts)
    drill.run(register_adapter(target, name="doomed", path=SHIPPED_ADAPTERS / drill.adapter, tenant=""))
    before = {model: drill.complete(kept, model) for model in (facts.model, drill.adapter, "doomed")}
    drill.run(delete_adapter(target, name="doomed", tenant=""))
    drill.run(revoke_key(facts, data_dir, key_id=parse_key(revoked)))
    wait_until(lambda: drill.status_of(revoked, facts.model) == 401, "the revocation is known")
    real_platform.stratos("admin", "export", str(tmp_path / "export.jsonl"))

    with redis.Redis.from_url(facts.redis_url) as client:
        client.flushall()
        wait_until(lambda: drill.is_state("foreign"), "the loss is seen")
        assert {model: drill.complete(kept, model) for model in (facts.model, drill.adapter)} == {
            model: before[model] for model in (facts.model, drill.adapter)
        }
        assert drill.status_of(revoked, facts.model) == 401
        assert (drill.status_of(mint_key(), facts.model), drill.status_of(kept, "unseen")) == (503, 503)
        drill.refuses(lambda: drill.new_key("late"), promised)
        drill.refuses(lambda: drill.run(delete_adapter(target, name=drill.adapter, tenant="")), promised)
        assert client.dbsize() == 0

    adopted = real_platform.stratos("admin", "adopt-store", "--from", str(tmp_path / "export.jsonl")).stdout
    assert "tombstones" in adopted
    wait_until(lambda: drill.is_state("following"), "the store is followed again")
    late = drill.new_key("late")
    for key in (kept, late, facts.api_key):
        assert drill.complete(key, drill.adapter) == before[drill.adapter]
    assert drill.status_of(revoked, facts.model) == 401
    assert drill.status_of(kept, "doomed") == 404
    listed = real_platform.stratos("adapters", "list").stdout
    assert all(name in listed for name in facts.adapters)
    assert "doomed" not in listed
