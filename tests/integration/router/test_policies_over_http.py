"""Each placement policy and scorer, chosen by its setting, seen over HTTP by the workers that answered.

A router process with the setting, two workers of different speed or alike, and a gateway; the tokens of the fake engine
tell which worker computed them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import SystemClock
from stratos.core.placement import WorkerRole
from stratos.core.requests.convictions import ConvictionConfig
from stratos.engine.fake.runner import fake_generate
from stratos.rpc.clients.peer_addresses import PeerAddresses
from stratos.rpc.clients.router import RouterClient
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.routers.router_set import RouterSet
from stratos_gateway.routers.settings import RoutersConfig
from tests.support.paths import BASE_MODEL
from tests.support.reference.shipped_model import base_digest, shipped_tokenizer
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.gateway_world import World as GatewayWorld
from tests.support.worlds.gateway_world import gateway_world
from tests.support.worlds.router_world import fleet_of, service_process, until_live
from tests.support.worlds.worker_world import open_world

WEIGHTS = {"decode-0": 3, "decode-1": 7}
STEP_S, SLOW_STEP_S = 0.002, 0.03
PATIENT = {"liveness__silent_after_s": "600", "liveness__hung_after_s": "600", "bookings__confirm_s": "600"}
"""Workers and gateway share the tests' event loop: held up by a busy machine, they would be out for a moment, and a
policy chooses among those that are in."""


@dataclass
class World:
    """A gateway before a router with a policy."""

    gateway: GatewayWorld
    router: RouterClient
    metrics_address: str
    _random: Random

    def prompt(self, length: int = 24) -> list[int]:
        """A prompt that no other begins like."""
        return [self._random.randrange(300, 2000) for _ in range(length)]

    async def ask(self, prompt: Sequence[int], num_tokens: int = 1, **more: Any) -> str:
        """The worker that answers a completion."""
        return (await self.answer(prompt, num_tokens, **more))[0]

    async def answer(self, prompt: Sequence[int], num_tokens: int = 1, **more: Any) -> tuple[str, int]:
        """The worker that answers a completion, and how many tokens of the prompt it had cached."""
        body = {"prompt": list(prompt), "max_tokens": num_tokens, **self._common(), **more}
        response = await self.gateway.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        cached = answer["usage"].get("prompt_tokens_details") or {}
        return _worker_of(prompt, answer["choices"][0]["token_ids"][0]), cached.get("cached_tokens", 0)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[str]:
        """A stream that goes on for as long as the block; its worker."""
        prompt = self.prompt()
        body = {"prompt": prompt, "max_tokens": 3000, "stream": True, "ignore_eos": True, **self._common()}
        async with self.gateway.http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and (ids := json.loads(line[6:])["choices"][0]["token_ids"]):
                    yield _worker_of(prompt, ids[0])
                    return

    async def until_shown(self, num_running: int) -> None:
        """The router knows that so many requests run, those that have just ended left out."""

        async def is_shown() -> bool:
            fleet = await fleet_of(self.router)
            return sum(worker.status.num_seqs for worker in fleet.workers if worker.status) == num_running

        await eventually(is_shown, f"{num_running} requests run")

    async def until_queued(self) -> str:
        """The worker that has tokens of prompts to compute, once there is one."""
        found: list[str] = []

        async def is_shown() -> bool:
            fleet = await fleet_of(self.router)
            found.extend(w.ref.worker_id for w in fleet.workers if w.status and w.status.engine.num_queued_tokens)
            return bool(found)

        await eventually(is_shown, "tokens are queued")
        return found[0]

    async def metric(self, name: str) -> float:
        """Of the router."""
        async with httpx.AsyncClient(timeout=LIMIT_S) as client:
            text = (await client.get(f"http://{self.metrics_address}/metrics")).text
        return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)), 0.0)

    @staticmethod
    def _common() -> dict[str, Any]:
        return {"model": "base", "temperature": 0, "return_token_ids": True}


def _worker_of(prompt: Sequence[int], token: int) -> str:
    size = shipped_tokenizer().vocab_size
    made = {
        fake_generate(prompt, 1, prefill_weight=weight, decode_weight=weight, vocab_size=size)[0]: name
        for name, weight in WEIGHTS.items()
    }
    return made[token]


@asynccontextmanager
async def platform(tmp_path: Path, *slow: str, **settings: str) -> AsyncIterator[World]:
    """Two workers, of which some are slow, a router with these settings, a gateway."""
    async with open_world(tmp_path) as workers:
        addresses = []
        for name, weight in WEIGHTS.items():
            fake = {
                "worker_weight": weight,
                "num_blocks": 512,
                "step_s": SLOW_STEP_S if name in slow else STEP_S,
                "model_path": BASE_MODEL,
                "model_digest": base_digest(),
            }
            addresses.append((await workers.start(WorkerRole.DECODE, worker_id=name, fake=fake)).process.address)
        values = {"discovery": "static://" + ",".join(f"decode@{address}" for address in addresses)}
        async with (
            service_process("stratos_router", tmp_path, PATIENT | values | settings) as found,
            RouterClient(found["address"]) as client,
        ):
            await until_live(client, *addresses)
            async with running_routers(found["address"]) as routers, gateway_world(0, routers=routers) as gateway:
                yield World(gateway, client, found["metrics_address"], Random(1))


@asynccontextmanager
async def running_routers(address: str) -> AsyncIterator[RouterSet]:
    clock, metrics = SystemClock(), GatewayMetrics(CollectorRegistry())
    known = PeerAddresses([address], clock)
    routers = RouterSet(
        known,
        lambda digest: "base",
        RouterClient,
        RoutersConfig(silence_timeout_s=600),
        ConvictionConfig(),
        metrics,
        clock,
        Random(1),
    )
    running = asyncio.create_task(routers.run())
    try:
        yield routers
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await routers.close()


def scorer(name: str) -> dict[str, str]:
    """Settings of a policy that goes by one scorer."""
    return {"policies__default": "mine", "policies__custom": json.dumps({"mine": {"scorers": {name: 1.0}}})}


async def test_round_robin_takes_workers_in_turn(tmp_path: Path) -> None:
    async with platform(tmp_path, policies__default="round_robin") as world:
        asked = [await world.ask(world.prompt()) for _ in range(6)]
        assert set(asked) == set(WEIGHTS)
        assert all(one != next_one for one, next_one in itertools.pairwise(asked))


async def test_least_loaded_goes_to_the_other_worker(tmp_path: Path) -> None:
    # slow, so that the stream outlasts the rest
    async with platform(tmp_path, *WEIGHTS, policies__default="least_loaded") as world, world.held() as busy:
        for _ in range(6):
            await world.until_shown(num_running=1)
            assert await world.ask(world.prompt()) != busy


async def test_session_affinity_keeps_a_session_at_its_worker(tmp_path: Path) -> None:
    async with platform(tmp_path, policies__default="session_affinity") as world:
        homes = {}
        for user in "abcdefghijklmnopqrst":  # all at one of two workers: once in half a million runs
            homes[user] = {await world.ask(world.prompt(), user=user) for _ in range(2)}
        assert all(len(workers) == 1 for workers in homes.values())
        assert set.union(*homes.values()) == set(WEIGHTS)


@pytest.mark.parametrize("settings", [{"policies__default": "prefix"}, scorer("prefix")], ids=["policy", "scorer"])
async def test_a_prefix_goes_to_the_worker_that_has_it(tmp_path: Path, settings: dict[str, str]) -> None:
    async with platform(tmp_path, **settings) as world:
        await world.ask(world.prompt())  # tells the gateway how blocks are cut
        for _ in range(2):
            prefix, num_before = world.prompt(160), await world.metric("stratos_router_indexed_blocks")
            home = await world.ask([*prefix, *world.prompt(8)])

            async def is_indexed(least: float = num_before + 10) -> bool:
                return await world.metric("stratos_router_indexed_blocks") >= least

            await eventually(is_indexed, "the router has heard of the blocks")
            answers = [await world.answer([*prefix, *world.prompt(8)]) for _ in range(5)]
            assert answers == [(home, 160)] * 5


@pytest.mark.parametrize("name", ["ttft", "itl"])
async def test_a_faster_worker_is_preferred_by_what_it_measures(tmp_path: Path, name: str) -> None:
    slow = "decode-0"
    async with platform(tmp_path, slow, **scorer(name)) as world:
        asked: list[str] = []

        async def is_settled() -> bool:
            asked.append(await world.ask(world.prompt(), num_tokens=4))
            return set(asked) == set(WEIGHTS) and slow not in asked[-6:]

        await eventually(is_settled, "both are measured, and the fast one is taken")


async def test_long_prompts_spread_by_the_tokens_that_are_queued(tmp_path: Path) -> None:
    # slow, so that the first of a pair has tokens queued when the second comes
    async with platform(tmp_path, *WEIGHTS, policies__long_prompt_tokens="64", **scorer("queued_tokens")) as world:
        for _ in range(3):
            first = asyncio.create_task(world.ask(world.prompt(3900)))
            busy = await world.until_queued()
            assert await world.ask(world.prompt(320)) != busy
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await world.until_shown(num_running=0)
