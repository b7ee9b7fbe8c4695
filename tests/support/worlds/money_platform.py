"""A platform of two gateways and one batch slot, with a price list, a classifier and an external endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.fakes.scripted_http import Asked, Reply, ScriptedHttp, scripted_http_in_thread
from tests.support.servers.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.platform_process import MTLS, PlatformProcess, running_platform

GATEWAYS = ("gateway-0", "gateway-1")
STEP_S = 0.005
"""Length of the fake engine's steps."""
MAX_OPEN = 16
"""Requests of each gateway."""
WAIT_S = 600.0
"""Longer than any test: a slow machine ends no request that waits."""
NUM_LONG = {"fake": 400, "torch": 60}
AFTER_S = 2.0
EXTERNAL_PRICE = {"prompt": 2_000_000, "cached": 1_000_000, "output": 5_000_000}
EXTERNAL_USAGE = {"prompt_tokens": 70, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 20}}
EXTERNAL_COST = 50 * 2 + 20 * 1 + 30 * 5
"""Micro-units of one external request."""
PRICES = {"default": {"prompt": 1_000_000, "cached": 250_000, "output": 3_000_000}}
HELD = "please take long"
"""A prompt to which the endpoint says its first piece and no more, as long as it is asked."""
SCORED = "please score me"
"""A text on which the classifier gives 0.9; any other gets 0.1."""
DECLARED: dict[str, Any] = {
    "policies": {"words": {"words": {"w": ["blue heron"]}, "replacement": "[cut]"},
                 "scored": {"classifier_threshold": 0.5}},
    "templates": {"policed/bird": {"versions": {1: {"text": "The {{ bird }}"}}}},
    "plans": {"paid": {"priority_class": 2, "prices": PRICES, "resident_only": True},
              "open": {"priority_class": 2, "prices": PRICES}},
    "tenants": {"payer": {"plan": "paid"}, "resident": {"plan": "paid"}, "roamer": {"plan": "open"},
                "wanderer": {"plan": "open"},
                "leaver": {"plan": "paid"}, "policed": {"plan": "paid", "overrides": {"content_policy": "words"}},
                "keeper": {"plan": "open", "overrides": {"response_cache": True}},
                "scored": {"plan": "paid", "overrides": {"content_policy": "scored"}}},
}  # fmt: skip


async def outside(asked: Asked, reply: Reply) -> None:
    """The classifier, and an endpoint that says "from outside"."""
    if asked.path.endswith("/moderations"):
        texts = asked.body["input"]
        score = 0.9 if SCORED in str(texts) else 0.1
        await reply.send({"results": [{"category_scores": {"any": score}}]})
        return
    await reply.begin_events()
    for piece, reason in (("from ", None), ("outside", None), ("", "stop")):
        said = {"delta": {"content": piece}} if "messages" in asked.body else {"text": piece}
        await reply.event({"choices": [{"index": 0, "finish_reason": reason, **said}]})
        if HELD in str(asked.body):
            await asyncio.Event().wait()
    await reply.event({"choices": [], "usage": EXTERNAL_USAGE})
    await reply.event("[DONE]")


@dataclass
class MoneyPlatform:
    """The platform and its callers."""

    process: PlatformProcess
    scripted: ScriptedHttp
    collector: OtlpReceiver
    num_long: int
    """Output tokens of a request that takes long enough to be disturbed."""
    keys: dict[str, str] = field(default_factory=dict)
    """By tenant; "platform" is of the role admin, "owner" of payer's tenant-admin."""

    @cached_property
    def admin(self) -> httpx.Client:
        """Client of the admin API, as the platform's admin."""
        url, headers = self.process.facts()["admin_url"], {"authorization": f"Bearer {self.keys['platform']}"}
        return httpx.Client(base_url=f"{url}/admin/v1", headers=headers, timeout=LIMIT_S, trust_env=False)

    def client(self, tenant: str) -> httpx.AsyncClient:
        """A new connection for each request, so that both gateways get some."""
        return httpx.AsyncClient(
            base_url=self.process.base_url,
            headers={"authorization": f"Bearer {self.keys[tenant]}"},
            timeout=None,
            trust_env=False,
            limits=httpx.Limits(max_connections=100, max_keepalive_connections=0),
        )

    def external_calls(self) -> list[Asked]:
        """Requests that the external endpoint was asked."""
        return [asked for asked in list(self.scripted.asked) if "completions" in asked.path]

    def metric(self, gateway: str, name: str) -> float:
        """Sum of a metric's samples at one gateway."""
        address = self.process.processes()[gateway]["metrics_address"]
        text = httpx.get(f"http://{address}/metrics", trust_env=False, timeout=LIMIT_S).text
        families = text_string_to_metric_families(text)
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    def log(self, gateway: str) -> str:
        """Log of a gateway."""
        return (self.process.run_dir() / "logs" / f"{gateway}.log").read_text()

    async def at_both(self, metric: str, ask: Any) -> None:
        """Call ``ask`` until each gateway has counted one of its answers in ``metric``."""

        async def has_counted() -> bool:
            await asyncio.gather(*(ask() for _ in range(4)))
            values = await asyncio.gather(*(asyncio.to_thread(self.metric, name, metric) for name in GATEWAYS))
            return all(values)

        await eventually(has_counted, f"each gateway has counted in {metric}")

    def num_running(self) -> int:
        """Requests in the batch."""
        return sum(worker["num_running"] for worker in self.process.status()["workers"])

    def num_queued(self) -> int:
        """Requests that wait in the router."""
        return sum(queue["num_requests"] for queue in self.process.status()["queues"])


@contextmanager
def money_platform(folder: Path, engine: str) -> Iterator[MoneyPlatform]:
    """Start all of it over an engine, "fake" or "torch"."""
    with scripted_http_in_thread(outside) as scripted, otlp_receiver() as collector:
        env = {
            "STRATOS_DECODE_WORKER_FAKE__STEP_S": str(STEP_S),
            "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS": "1",
            "STRATOS_ROUTER_ADMISSION__MAX_WAITING_PER_WORKER": "0",
            "STRATOS_ROUTER_QUEUE__TTL_S": str(WAIT_S),
            "STRATOS_GATEWAY_REQUESTS__MAX_OPEN": str(MAX_OPEN),
            "STRATOS_GATEWAY_REQUESTS__PLACEMENT_TIMEOUT_S": str(WAIT_S),
            "STRATOS_GATEWAY_OVERFLOW__URL": f"{scripted.url}/v1",
            "STRATOS_GATEWAY_OVERFLOW__AFTER_S": str(AFTER_S),
            **{f"STRATOS_GATEWAY_OVERFLOW__{name.upper()}_PRICE": str(p) for name, p in EXTERNAL_PRICE.items()},
            "STRATOS_GATEWAY_POLICIES__CLASSIFIER_URL": f"{scripted.url}/v1/moderations",
            "STRATOS_GATEWAY_POLICIES__CLASSIFIER_IS_RESIDENT": "true",
        }
        size = ("--gateways", "2", "--prefill", "0", "--decode", "1", "--max-decode", "1")
        flags = ("--engine", engine, *size, *MTLS, "--otlp-endpoint", collector.endpoint)
        with running_platform(folder, *flags, env=env) as process:
            platform = MoneyPlatform(process, scripted, collector, NUM_LONG[engine])
            made = process.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout
            platform.keys["platform"] = made.strip()
            answer = platform.admin.post("/declaration", content=json.dumps(DECLARED))
            assert answer.status_code == 200, answer.text
            for tenant in DECLARED["tenants"]:
                platform.keys[tenant] = platform.admin.post("/keys", json={"tenant": tenant}).json()["key"]
            owner = platform.admin.post("/keys", json={"tenant": "payer", "role": "tenant-admin"})
            platform.keys["owner"] = owner.json()["key"]
            try:
                yield platform
            finally:
                platform.admin.close()
