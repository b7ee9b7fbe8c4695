#!/usr/bin/env python3
"""Run mixed streams of all dialects while one of three gateways is lost: do clients that come back have all of it?

    python -m scripts.bench.killed_streams --out benchmarks/results/streams-killed-2core-cpu.json
    python -m scripts.bench.killed_streams --faults kill --streams 300 --room 300000

Three gateways, two routers and three workers of a fake engine, of ``stratos up``.  A client comes back after a lost
connection, after two seconds without a byte, and (every second one, twice) after thirty events by itself: by the same
POST with ``Last-Event-ID``, by GET of its stream, or by the same POST alone, as an SDK repeats it.  Expected are the
texts of the same requests that nothing disturbed.  The ledger must have one whole entry of each that had a record at
every connection; a try of a gateway that had none (its client left before it was told so) stands there beside it.
Each stream is asked for once more at the end, which counts as a connection.  With ``--room`` records of the tenant have
so many bytes in Redis, and the rest of them lies in the object store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from scripts.bench.gateway_cost import engine_settings
from scripts.bench.harness import flag, run_bench, show, table
from stratos.cli.chaos.faults.fault import Fault
from stratos.cli.chaos.local_target import ChaosTarget
from stratos.cli.local.running import find_platform
from stratos.core.ledger.entry import OWN_RANK, LedgerEntry, RequestOutcome
from stratos.reproduce.load.local_platform import Platform, running_platform
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis

_DRAIN_S = 2.0
_SIZE = ("--prefill", "0", "--decode", "3", "--gateways", "3", "--routers", "2", "--drain-timeout", str(_DRAIN_S))
_ARGUMENTS = ("--engine", "fake", *_SIZE, "--no-fork-server")
_FAULTS = {"kill": 0.0, "stop": 10.0, "cut-redis": 10.0, "cut-workers": 10.0, "partition": 10.0, "drain": _DRAIN_S}
"""Kind -> how long it lasts."""
_PATIENCE_S, _PAUSE_S, _LEAVES_AFTER = 2.0, 0.1, 30
_BILLED_S = 120.0
"""Most time in which the ledger has every stream."""
_HEADER = "x-stratos-stream"
_ENDS = ("[DONE]", "response.completed", "response.incomplete", "message_stop")
_PATHS = ("chat/completions", "completions", "responses", "messages")
_RETURNS = ("POST with Last-Event-ID", "GET with Last-Event-ID", "POST")


def body_of(number: int, num_tokens: int) -> tuple[str, dict[str, Any]]:
    """Route and body of a stream."""
    path, prompt = _PATHS[number % len(_PATHS)], f"tell number {number}"
    body: dict[str, Any] = {"model": "base", "stream": True, "temperature": 0}
    body["max_output_tokens" if path == "responses" else "max_tokens"] = num_tokens
    if path in ("completions", "chat/completions"):
        body["ignore_eos"] = True
    asked = {"completions": {"prompt": prompt}, "responses": {"input": prompt}}
    return path, body | asked.get(path, {"messages": [{"role": "user", "content": prompt}]})


@dataclass
class Client:
    """A stream's client, which comes back until it has all of it."""

    name: str
    number: int
    num_tokens: int
    patience_s: float = _PATIENCE_S
    text: str = ""
    has_ended: bool = False
    is_recorded: bool = True
    stream: str = ""
    last_id: str = ""
    num_events: int = 0
    num_returns: Counter[str] = field(default_factory=Counter)
    num_refused: int = 0

    async def run(self, http: httpx.AsyncClient) -> None:
        """Read to the end."""
        way = _RETURNS[self.number // len(_PATHS) % len(_RETURNS)]
        while True:
            with suppress(httpx.HTTPError):
                await self._connect(http, way)
            if self.has_ended:
                return
            self.num_returns[way] += 1
            await asyncio.sleep(_PAUSE_S)

    async def _connect(self, http: httpx.AsyncClient, way: str) -> None:
        path, body = body_of(self.number, self.num_tokens)
        headers = {"idempotency-key": self.name, "x-request-id": self.name, "connection": "close"}
        if self.last_id and way != "POST":
            headers["last-event-id"] = self.last_id
        asked: dict[str, Any] = {"url": f"/{path}", "method": "POST", "json": body}
        if self.last_id and way.startswith("GET"):
            asked = {"url": f"/streams/{self.stream}", "method": "GET"}
        async with http.stream(**asked, headers=headers, timeout=self.patience_s) as answer:
            if answer.status_code in (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.TOO_MANY_REQUESTS):
                self.num_refused += 1
                return
            if answer.status_code != httpx.codes.OK:
                raise SystemExit(f"{self.name}: {answer.status_code} {(await answer.aread()).decode()}")
            if "last-event-id" not in headers:
                self.text, self.last_id = "", ""
            self.stream = answer.headers[_HEADER]
            self.is_recorded = self.is_recorded and self.stream != "none"
            await self._read(answer)

    async def _read(self, answer: httpx.Response) -> None:
        """Whole events, until it leaves by itself."""
        rest, num_before = "", self.num_events
        async for part in answer.aiter_text():
            *events, rest = (rest + part).split("\n\n")
            for event in events:
                self._take(dict(line.split(": ", 1) for line in event.split("\n") if line and line[0] != ":"))
            is_restless = self.number % 2 and self.stream != "none" and self.num_returns.total() < 2
            if is_restless and self.num_events - num_before > _LEAVES_AFTER and not self.has_ended:
                return

    def _take(self, event: dict[str, str]) -> None:
        data = event.get("data", "")
        if not data or (self.stream != "none" and not event.get("id")):
            return  # an error of a gateway that has the stream no more is no part of it
        self.last_id = event.get("id", "")
        self.num_events += 1
        self.has_ended = data == _ENDS[0] or any(f'"type":"{end}"' in data for end in _ENDS[1:])
        if data != _ENDS[0]:
            self.text += _text_of(json.loads(data))


def _text_of(value: dict[str, Any]) -> str:
    if value.get("type") == "response.output_text.delta":
        return str(value["delta"])
    if value.get("type") == "content_block_delta":
        return str(value["delta"]["text"])
    [choice, *_] = value.get("choices") or [{}]
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")


async def entries_of(redis_url: str, names: set[str]) -> list[LedgerEntry]:
    """Entries of these requests, once each of them has finished, or what there is after a while."""
    day, loop = f"{datetime.now(UTC):%Y-%m-%d}", asyncio.get_running_loop()
    until_s = loop.time() + _BILLED_S
    async with open_redis(redis_url) as connection:
        store = LedgerStore(connection, RecordStoreConfig())
        reader = UsageReader(connection, RecordStoreConfig())
        while True:
            found = [e for tenant in await store.tenants() async for e in reader.entries(tenant, day)]
            own = [entry for entry in found if entry.tag.http_request_id in names]
            if names <= {entry.tag.http_request_id for entry in own if _has_finished(entry)} or loop.time() > until_s:
                return own
            await asyncio.sleep(0.5)


def _has_finished(entry: LedgerEntry) -> bool:
    return entry.outcome is RequestOutcome.FINISHED


def _num_objects(platform: Platform) -> int:
    """Objects with texts of records."""
    return sum(1 for path in Path(platform.data_dir).rglob("streams/*/*") if path.is_file())


async def bytes_in_redis(redis_url: str) -> int:
    """Memory of all records of streams, with their frames."""
    async with open_redis(redis_url) as redis:
        keys = [key async for key in redis.scan_iter(f"{RecordStoreConfig().prefix}:streams:*")]
        return sum([await redis.memory_usage(key, samples=0) or 0 for key in keys])


async def arm(platform: Platform, kind: str, texts: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """All streams under a fault of a gateway."""
    target = ChaosTarget(find_platform(Path(platform.data_dir)), Path(platform.data_dir))
    await target.wait_whole()
    clients = [Client(f"{kind}-{number}", number, args.tokens) for number in range(args.streams)]
    async with _http(platform) as http:
        running = [asyncio.ensure_future(client.run(http)) for client in clients]
        while sum(client.num_events > args.tokens // 8 for client in clients) < args.streams // 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        open_streams = sum(not client.has_ended for client in clients)
        fault = Fault(kind, "gateway-1", lasting_s=_FAULTS[kind])
        proof, *_ = await asyncio.gather(fault.strike(target, asyncio.Event()), *running)
        again = [Client(client.name, client.number, args.tokens, patience_s=60) for client in clients]
        await asyncio.gather(*(client.run(http) for client in again))
    recorded = [client for client, last in zip(clients, again, strict=True) if client.is_recorded and last.is_recorded]
    entries = await entries_of(target.facts.redis_url, {client.name for client in recorded})
    whole = [entry for entry in entries if _has_finished(entry) and entry.counts.num_output == args.tokens]
    others = [entry for entry in entries if entry not in whole]
    found = Counter(entry.tag.http_request_id for entry in whole)
    returns = Counter[str]()
    for client in clients:
        returns += client.num_returns
    return {
        "fault": kind,
        "lasting_s": _FAULTS[kind],
        "proof": proof,
        "open_when_it_came": open_streams,
        "returns": dict(returns),
        "clients_that_returned": sum(client.num_returns.total() > 0 for client in clients),
        "told_to_ask_again": sum(client.num_refused for client in clients),
        "taken_over": sum(entry.rank > OWN_RANK for entry in entries),
        "different": sum(client.text != text for client, text in zip(clients, texts, strict=True)),
        "longer": sum(len(client.text) > len(text) for client, text in zip(clients, texts, strict=True)),
        "shorter": sum(len(client.text) < len(text) for client, text in zip(clients, texts, strict=True)),
        "different_again": sum(client.text != text for client, text in zip(again, texts, strict=True)),
        "objects": await asyncio.to_thread(_num_objects, platform),
        "bytes_in_redis": await bytes_in_redis(target.facts.redis_url),
        "recorded": len(recorded),
        "billed_once": sum(found[client.name] == 1 for client in recorded),
        "tries_without_record": len(others),
        "tokens_of_these": sum(entry.counts.num_output for entry in others),
    }


def _http(platform: Platform) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    headers = {"authorization": f"Bearer {platform.key}"}
    return httpx.AsyncClient(base_url=platform.url, headers=headers, limits=limits, trust_env=False)


async def run_arms(platform: Platform, args: argparse.Namespace) -> list[dict[str, Any]]:
    """What nothing disturbed, then every fault."""
    async with _http(platform) as http:
        while True:
            first = Client("first", 0, 8, patience_s=60)
            await first.run(http)
            if first.is_recorded:  # the tenant has its data key
                break
            await asyncio.sleep(0.5)
        plain = [Client(f"plain-{number}", number, args.tokens, patience_s=60) for number in range(args.streams)]
        await asyncio.gather(*(client.run(http) for client in plain))
    rows = []
    for kind in args.faults:
        rows.append(await arm(platform, kind, [client.text for client in plain], args))
        show(rows[-1])
    return rows


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Every fault of one gateway."""
    room = {
        "STRATOS_GATEWAY_STREAMS__TENANT_BYTES": str(args.room),
        "STRATOS_GATEWAY_STREAMS__SPILL_PART": "0.3",
        "STRATOS_GATEWAY_STREAMS__SPILL_POLL_S": "0.1",
    }
    env = room if args.room else {}
    with engine_settings(args.step_ms), running_platform(*_ARGUMENTS, env=env) as platform:
        rows = asyncio.run(run_arms(platform, args))
    names = ("fault", "clients_that_returned", "taken_over", "different", "different_again", "recorded", "billed_once")
    cells = [[str(row[name]) for name in names] for row in rows]
    return {"streams": args.streams, "tokens": args.tokens, "rows": rows, "table": table(names, cells)}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--streams", type=int, default=200),
        flag("--room", type=int, default=0, help="bytes of the tenant's records in Redis; 0 for the gateway's default"),
        flag("--tokens", type=int, default=80, help="of each stream"),
        flag("--step-ms", type=float, default=150.0, help="duration of a step of the fake engine"),
        flag("--faults", nargs="+", choices=list(_FAULTS), default=list(_FAULTS)),
    )
