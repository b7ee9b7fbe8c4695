#!/usr/bin/env python3
"""Measure what a request and a chunk cost the gateway: CPU time of its whole process, as the kernel counts it.

    python -m scripts.bench.gateway_cost --out benchmarks/results/gateway-cost-2core-cpu.json --beside /path/to/checkout

A platform of ``stratos up`` with everything on (keys, limits, ledger, receipts, metrics, log) runs in front of a fake
engine; prompts are token ids, so that nothing is tokenised.  ``chunk``: streams that are open all the time, every
token an event.  ``request``: one short stream after the other on each connection, one token each.  ``8 KB prompt``:
what such a request takes more of the event loop's thread alone when its prompt is 8 KB of text, which another thread
tokenises.  ``recorded chunk``: of streams that have a record.  What the idle gateway takes in the same time is taken
off.  CPU time needs no idle machine, though a busy one shares its caches.  With ``--beside`` another checkout with a
``.venv`` of its own takes turns with this one: both platforms run all the time, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from scripts.bench.harness import ROOT, by_turns, flag, run_bench, show, table
from stratos.cli.load.client.http_connection import ConnectionPool, HttpAnswer
from stratos.cli.load.client.http_sender import OK
from stratos.reproduce.load.local_platform import Platform, running_platform

STREAMS = (32, 256)
PROMPT_TOKENS, LONG_TOKENS = 16, 4000
PROMPT_BYTES = 8192
_WORDS = ("the ", "order ", "of ", "pages ", "in ", "an ", "old ", "library ", "is ", "known ", "to ", "few ")
LOOP_REQUESTS = 100
"""Of one connection, each with an 8 KB prompt, and as many with a short one."""
WARM_CHUNKS = 4
"""Of each stream, before anything is measured."""
IDLE_S = 5.0
Measure = Callable[[Platform, float], Coroutine[Any, Any, float]]
_EVENT = b'data: {"id"'
_ENGINE = {
    "STRATOS_DECODE_WORKER_FAKE__NUM_BLOCKS": "80000",
    "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS": "256",
    "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_BATCHED_TOKENS": "8192",
    "STRATOS_GATEWAY_REQUESTS__MAX_OPEN_PER_TENANT": "512",
}
PLATFORM_ARGUMENTS = ("--engine", "fake", "--prefill", "0", "--no-fork-server")


def arguments_of(tree: Path) -> tuple[str, ...]:
    """Arguments of a checkout's ``stratos up``: one from before there was a fork server does not know its switch."""
    has_server = any((tree / "libs" / "stratos" / room / "forking").is_dir() for room in ("rpc", "cli"))
    return PLATFORM_ARGUMENTS if has_server else PLATFORM_ARGUMENTS[:-1]


@dataclass(frozen=True, slots=True)
class Front:
    """A server that is measured: its URL, a key that it takes, and its process."""

    url: str
    key: str
    pid: int


class Load:
    """Connections to one gateway, each of which asks again once it has its answer.

    Args:
        platform: that is asked.
        max_tokens: of each request.
        text_bytes: of prompts that are text; 0 for a few token ids.
        recorded_as: begins the ``Idempotency-Key`` of each request; empty sends none.
    """

    def __init__(
        self, platform: Platform | Front, max_tokens: int, *, text_bytes: int = 0, recorded_as: str = ""
    ) -> None:
        url = urlsplit(platform.url)
        assert url.hostname is not None
        assert url.port is not None
        self._pool = ConnectionPool(url.hostname, url.port, None)
        self._head = f"POST /v1/completions HTTP/1.1\r\nhost: {url.netloc}\r\nauthorization: Bearer {platform.key}\r\n"
        self._max_tokens = max_tokens
        self._text_bytes = text_bytes
        self._recorded_as = recorded_as
        self.num_chunks: list[int] = []
        """Events of each connection so far."""
        self.num_requests = 0
        self._num_asked = 0
        self._clients: list[asyncio.Task[None]] = []

    async def open(self, num_streams: int) -> None:
        """Connect."""
        for number in range(num_streams):
            self.num_chunks.append(0)
            self._clients.append(asyncio.create_task(self._ask_on(number)))
            if number % 32 == 31:
                await asyncio.sleep(0.1)  # bodies of one tenant have few places

    async def until(self, is_there: Callable[[], bool]) -> None:
        """Wait for a count; raises what ended a connection."""
        while not is_there():
            for client in self._clients:
                if client.done():
                    client.result()
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Leave."""
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        self._pool.close()

    async def _ask_on(self, number: int) -> None:
        """One request after the other, whose events are counted where they begin."""
        tail = b""

        def count(answer: HttpAnswer, data: bytes) -> None:
            nonlocal tail
            data = tail + data
            if answer.status != OK or b'data: {"error"' in data:
                raise RuntimeError(data[:400])
            self.num_chunks[number] += data.count(_EVENT)
            tail = data[1 - len(_EVENT) :]  # no whole event, and perhaps the beginning of one

        while True:
            self._num_asked += 1
            await self._pool.exchange(self._request(self._num_asked), count)
            self.num_requests += 1

    def _request(self, number: int) -> bytes:
        """Bytes of a request whose prompt no other one has."""
        prompt = _text(number, self._text_bytes) if self._text_bytes else _token_ids(number)
        fields = {"model": "base", "prompt": prompt, "max_tokens": self._max_tokens, "ignore_eos": True, "stream": True}
        body = json.dumps(fields)
        key = f"idempotency-key: {self._recorded_as}-{number}\r\n" if self._recorded_as else ""
        return f"{self._head}{key}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


def _token_ids(number: int) -> list[int]:
    return [5 + (number * 7919 + place * 31) % 4000 for place in range(PROMPT_TOKENS)]


def _text(number: int, num_bytes: int) -> str:
    """Words, in another order for each number."""
    order = Random(number)
    words = [f"{number} "]
    while sum(map(len, words)) < num_bytes:
        words += order.choices(_WORDS, k=100)
    return "".join(words)[:num_bytes]


def gateway_pid(platform: Platform | Front) -> int:
    """The gateway's process among the children of the platform."""
    if isinstance(platform, Front):
        return platform.pid
    for pid, command in child_commands(platform.process.pid).items():
        if "stratos_gateway" in command:
            return pid
    raise RuntimeError("the platform has no gateway")


def child_commands(pid: int) -> dict[int, str]:
    """Command lines of the processes that a process started, by their ids."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child): Path(f"/proc/{child}/cmdline").read_text() for child in children}


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, all of its threads, user and system."""
    return time.clock_gettime((~pid << 3) | 2)  # the clock of another process, as clock_getcpuclockid(3) names it


def loop_cpu_s(pid: int) -> float:
    """CPU seconds of a process's first thread, which is that of its event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU of a process since a moment.

    Args:
        pid: of the process.
        idle_ratio: part of a core that it takes without any load, which is taken off.
    """

    pid: int
    idle_ratio: float
    cpu_began_s: float
    began_s: float

    @classmethod
    def since_now(cls, pid: int, idle_ratio: float = 0.0) -> Spent:
        """Begin."""
        return cls(pid, idle_ratio, cpu_s(pid), time.monotonic())

    def ratio(self) -> float:
        """Part of a core since then."""
        return (cpu_s(self.pid) - self.cpu_began_s) / (time.monotonic() - self.began_s)

    def us_per(self, number: int) -> float:
        """Microseconds for each of what was done since then."""
        return (self.ratio() - self.idle_ratio) * (time.monotonic() - self.began_s) / number * 1e6


async def chunk_cost(
    platform: Platform | Front,
    num_streams: int,
    num_chunks: int,
    idle_ratio: float,
    recorded_as: str = "",
    *,
    text_bytes: int = 0,
    num_tokens: int = LONG_TOKENS,
) -> float:
    """Microseconds of CPU per event, with streams of so many tokens that are open all the time."""
    load = Load(platform, num_tokens, text_bytes=text_bytes, recorded_as=recorded_as)
    await load.open(num_streams)
    try:
        await load.until(lambda: min(load.num_chunks) >= WARM_CHUNKS)
        began, spent = sum(load.num_chunks), Spent.since_now(gateway_pid(platform), idle_ratio)
        await load.until(lambda: sum(load.num_chunks) - began >= num_chunks)
        return spent.us_per(sum(load.num_chunks) - began)
    finally:
        await load.close()


async def loop_cost(platform: Platform, num_requests: int, idle_ratio: float, *, is_text: bool) -> float:
    """Microseconds of the event loop's thread per request of one token, one after the other."""
    load, pid = Load(platform, 1, text_bytes=PROMPT_BYTES if is_text else 0), gateway_pid(platform)
    await load.open(1)
    try:
        await load.until(lambda: load.num_requests >= 10)
        began, cpu_began_s, began_s = load.num_requests, loop_cpu_s(pid), time.monotonic()
        await load.until(lambda: load.num_requests - began >= num_requests)
        spent_s = loop_cpu_s(pid) - cpu_began_s - idle_ratio * (time.monotonic() - began_s)
        return spent_s / (load.num_requests - began) * 1e6
    finally:
        await load.close()


async def request_cost(
    platform: Platform | Front, num_streams: int, num_requests: int, idle_ratio: float, *, text_bytes: int = 0
) -> float:
    """Microseconds of CPU per request of one token, on kept connections."""
    load = Load(platform, 1, text_bytes=text_bytes)
    await load.open(num_streams)
    try:
        await load.until(lambda: load.num_requests >= 2 * num_streams)
        began, spent = load.num_requests, Spent.since_now(gateway_pid(platform), idle_ratio)
        await load.until(lambda: load.num_requests - began >= num_requests)
        return spent.us_per(load.num_requests - began)
    finally:
        await load.close()


def idle_ratio(platform: Platform | Front) -> float:
    """Part of a core that the gateway takes without any request."""
    spent = Spent.since_now(gateway_pid(platform))
    time.sleep(IDLE_S)
    return spent.ratio()


@contextlib.contextmanager
def engine_settings(step_ms: float) -> Iterator[None]:
    """Settings of the fake engine, in the environment that the platform inherits."""
    os.environ |= {**_ENGINE, "STRATOS_DECODE_WORKER_FAKE__STEP_S": str(step_ms / 1000)}
    yield


def measures(args: argparse.Namespace) -> dict[str, Measure]:
    """Costs by their names; each takes a platform and what it takes idle."""
    found: dict[str, Measure] = {}
    for number in args.streams:
        found[f"chunk at {number}"] = partial(_chunks, number, args.chunks)
        found[f"request at {number}"] = partial(_requests, number, args.requests)
    most = max(args.streams)
    found[f"recorded chunk at {most}"] = lambda platform, idle: chunk_cost(
        platform, most, args.chunks, idle, f"bench-{time.time_ns()}"
    )
    found["8 KB prompt, loop"] = prompt_cost
    return found


async def _chunks(num_streams: int, num_chunks: int, platform: Platform, idle: float) -> float:
    return await chunk_cost(platform, num_streams, num_chunks, idle)


async def _requests(num_streams: int, num_requests: int, platform: Platform, idle: float) -> float:
    return await request_cost(platform, num_streams, num_requests, idle)


async def prompt_cost(platform: Platform, idle: float) -> float:
    """Microseconds of the event loop's thread that 8 KB of text take more than a few token ids."""
    long = await loop_cost(platform, LOOP_REQUESTS, idle, is_text=True)
    return long - await loop_cost(platform, LOOP_REQUESTS, idle, is_text=False)


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds, and the median of the ratios within each."""
    trees = {"this": ROOT} | ({"beside": args.beside} if args.beside else {})
    with engine_settings(args.step_ms), contextlib.ExitStack() as stack:
        platforms = {
            name: stack.enter_context(running_platform(*arguments_of(tree), program=tree / ".venv/bin/stratos"))
            for name, tree in trees.items()
        }
        idle = {name: idle_ratio(platform) for name, platform in platforms.items()}
        rounds: dict[str, dict[str, list[float]]] = {}
        for name, measure in measures(args).items():

            def turn(tree: str, _: int, measure: Measure = measure) -> float:
                return round(asyncio.run(measure(platforms[tree], idle[tree])), 1)

            rounds[name] = by_turns(args.rounds, trees, turn)
            show({name: rounds[name], "load": round(os.getloadavg()[0], 1)})
    rows = {name: {tree: statistics.median(found) for tree, found in runs.items()} for name, runs in rounds.items()}
    ratios = {name: _ratio(runs) for name, runs in rounds.items() if len(runs) > 1}
    cells = [(name, "", *map(str, row.values()), str(ratios.get(name, ""))) for name, row in rows.items()]
    titles = ("us of CPU", "", *trees, *(["ratio"] if ratios else []))
    return {
        "idle_us_per_s": {name: round(ratio * 1e6, 1) for name, ratio in idle.items()},
        "cpu_us": rows,
        "ratio": ratios,
        "rounds_us": rounds,
        "table": table(titles, [cell[: len(titles)] for cell in cells]),
    }


def _ratio(runs: dict[str, list[float]]) -> float:
    return round(statistics.median(ours / theirs for ours, theirs in zip(*runs.values(), strict=True)), 3)


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--beside", type=Path, help="another checkout that takes turns"),
        flag("--rounds", type=int, default=3),
        flag("--streams", type=int, nargs="+", default=list(STREAMS)),
        flag("--step-ms", type=float, default=25.0, help="duration of a step of the fake engine"),
        flag("--chunks", type=int, default=10_000, help="events that are measured"),
        flag("--requests", type=int, default=500, help="requests that are measured"),
    )
