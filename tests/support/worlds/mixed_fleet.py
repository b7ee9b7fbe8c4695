"""Decode workers of other settings beside those of a running platform, as real processes; and streams by token ids."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.cli.data.folder import DataDir
from stratos.cli.local import topology
from stratos.cli.local.options import UpOptions
from stratos.cli.models.workers import fitted
from stratos.rpc.clients.channel import channel
from stratos.rpc.serving.address_file import read_address_file, replace_text
from tests.support.servers import warm_process
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.platform_process import PlatformProcess


@dataclass
class OtherWorker:
    """A decode worker that the platform's supervisor does not know of, but its routers do."""

    name: str
    address: str
    metrics_address: str
    popen: warm_process.WarmProcess

    async def drain(self) -> None:
        """Ask it to hand its streams over and to leave."""
        async with channel(self.address) as peer:
            await worker_pb2_grpc.WorkerServiceStub(peer).Drain(worker_pb2.DrainRequest())


@asynccontextmanager
async def other_worker(
    platform: PlatformProcess, name: str, speculation: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> AsyncIterator[OtherWorker]:
    """Start one with these drafts, tell the routers, and wait until they call it live; it is gone in the end.

    Args:
        platform: whose model it serves.
        name: its worker id, "decode-" and something.
        speculation: as ``--speculative-config``.
        env: settings of a decode worker by the names that follow its prefix.
    """
    data = DataDir(platform.data_dir)
    run = data.run_paths(platform.run_id)
    assert name.startswith("decode-"), "others get no drafts"
    facts, found = platform.facts(), run.work_path / f"{name}.address"
    told = UpOptions(model_path=Path(facts["model_path"]), speculative_config=json.dumps(speculation), threads=1)
    ends = topology.Endpoints(redis_url=facts["redis_url"], object_store_url=facts["object_store_url"])
    paths = topology.run_paths(run, data)
    options, _ = fitted(told)
    settings = topology.worker_settings(name, options, ends, paths) | topology.worker_sizes(options) | dict(env or {})
    spec = topology.service_spec(name, "decode_worker", settings, address_file=found, options=options, role="decode")
    found.unlink(missing_ok=True)  # of an earlier worker of this name
    popen = warm_process.begin(spec.module, env={**os.environ, **spec.env})
    entry = run.workers_folder / f"{name}.json"
    try:
        await eventually(lambda: found.exists() or popen.poll() is not None, "its address")
        address = read_address_file(found)
        assert address is not None, popen.stdout.read()
        member = {"worker_id": name, "address": address.address, "role": "decode"}
        replace_text(entry, json.dumps([member]))
        await _until(platform, name, is_live=True)
        yield OtherWorker(name, address.address, address.metrics_address, popen)
    finally:
        entry.unlink(missing_ok=True)
        popen.end()
        popen.stdout.close()
        await _until(platform, name, is_live=False)


async def live_workers(platform: PlatformProcess) -> set[str]:
    """Decode workers that a router chooses from."""
    status = await asyncio.to_thread(platform.status)
    return {w["worker_id"] for w in status["workers"] if w["role"] == "decode" and w["is_live"]}


async def _until(platform: PlatformProcess, name: str, *, is_live: bool) -> None:
    async def is_so() -> bool:
        return (name in await live_workers(platform)) == is_live

    await eventually(is_so, f"a router that knows {name}" if is_live else f"a router that has forgotten {name}")


async def num_drafted(metrics_address: str) -> float:
    """Drafted tokens that the steps of a worker have verified."""
    return await _engine_tokens(metrics_address, "drafted")


async def num_decoded(metrics_address: str) -> float:
    """Tokens that the steps of a worker have sampled."""
    return await _engine_tokens(metrics_address, "output")


async def _engine_tokens(metrics_address: str, kind: str) -> float:
    async with httpx.AsyncClient(trust_env=False, timeout=LIMIT_S) as http:
        text = (await http.get(f"http://{metrics_address}/metrics")).text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == f"stratos_engine_{kind}_tokens_total")


async def attempts_of(http: httpx.AsyncClient, name: str) -> list[dict[str, Any]]:
    """Generations of a request by its receipt: where each ran, and its drafts."""
    found: list[dict[str, Any]] = []

    async def is_there() -> bool:
        answer = await http.get(f"/requests/{name}/receipt")
        found[:] = answer.json()["generations"] if answer.status_code == 200 else []
        return bool(found)

    await eventually(is_there, f"the receipt of {name}")
    return found


def moved_between(generations: list[dict[str, Any]], first: str, second: str) -> bool:
    """Whether a request went from one worker to another after its first tokens."""
    (generation,) = generations
    tried = [(attempt["worker"], attempt["output_tokens"] > 0) for attempt in generation["attempts"]]
    return (first, True) in tried and tried[-1][0] == second


@dataclass
class Told:
    """A stream of completions as its client has it, over all its connections."""

    name: str
    body: Mapping[str, Any]
    ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    last_id: str = ""
    num_connections: int = 0
    has_ended: bool = False
    is_recorded: bool = True
    """Each connection had a record: a gateway that had no time for its store says so, and answers without."""

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.ids.values()))

    @property
    def said(self) -> tuple[Any, ...]:
        """Everything that drafts, moves and gateways must not change."""
        billed = {name: self.usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
        return self.ids, self.logprobs, self.reasons, billed

    async def run(self, http: httpx.AsyncClient) -> Told:
        """Read to the end, and come back where a gateway has gone."""
        while not self.has_ended:
            try:
                await self._connect(http)
            except httpx.HTTPError:
                continue
        return self

    async def _connect(self, http: httpx.AsyncClient) -> None:
        headers = {"x-request-id": self.name, "idempotency-key": self.name, "connection": "close"}
        if self.last_id:
            headers["last-event-id"] = self.last_id
        async with http.stream("POST", "/completions", json=dict(self.body), headers=headers) as answer:
            if answer.status_code == 503:  # a gateway that had no time for its store says so
                return
            assert answer.status_code == 200, (await answer.aread()).decode()
            self.num_connections += 1
            self._note_record(answer.headers["x-stratos-stream"] != "none")
            whole: list[str] = []
            async for line in answer.aiter_lines():
                whole.append(line)
                if not line:  # an event may be cut in its middle: then it comes again
                    for part in whole:
                        self._take(part)
                    whole = []

    def _note_record(self, is_there: bool) -> None:
        """What came without ids was the beginning of an answer that begins once more now."""
        if not self.last_id:
            self.ids, self.logprobs, self.reasons = {}, {}, {}
        self.is_recorded = self.is_recorded and is_there

    def _take(self, line: str) -> None:
        name, _, value = line.partition(": ")
        if name == "id":
            self.last_id = value
        elif name == "data" and value == "[DONE]":
            self.has_ended = True
        elif name == "data":
            self._take_event(json.loads(value))

    def _take_event(self, event: dict[str, Any]) -> None:
        assert "error" not in event, event
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            self.ids.setdefault(choice["index"], []).extend(choice.get("token_ids") or [])
            self.logprobs.setdefault(choice["index"], []).extend(
                (choice.get("logprobs") or {}).get("token_logprobs", [])
            )
            if choice["finish_reason"]:
                self.reasons[choice["index"]] = choice["finish_reason"]
