#!/usr/bin/env python3
"""Measure what a first token waits for because its prompt is computed by another worker: the exposed hand-off.

    python -m scripts.bench.exposed_handoff --out benchmarks/results/exposed-handoff-2core-cpu.json

A prefill and a decode worker, each a process with one thread of computation; the shipped model in float32 (6 KiB of
KV per token).  By turns a random prompt is computed by the decode worker itself and by the prefill worker, which hands
its KV over; a time runs from the submission on the decode worker's session to the first token.  The exposed part is the
difference of the two, each at its fastest, in ms and as a share of the time without a hand-off; ``neighbours_ms`` has
the difference of each pair of neighbours, which shows how much else the machine did.  The tail is the part of a
hand-off, from grant to commit, after the last token of the prompt was computed: both times of one request, a median.

Modes: ``streamed`` sends the frames of a chunk of 512 tokens beside the computation of the next one (the default on a
CPU); ``in turn`` computes the prompt in one step, so all frames come after it (SCHEDULER__SWITCHES__CHUNKED_PREFILL
off); ``streamed, overlap`` also launches steps ahead of the host (SCHEDULER__SWITCHES__OVERLAP on).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from scripts.bench.harness import MODEL, flag, run_bench, show
from scripts.bench.whole_platform import VOCAB
from stratos.common.tls.identity import PeerRole
from stratos.core.placement import WorkerRef
from stratos.pki.local import dialer_of, make_certificates, tls_config
from stratos.reproduce.load.worker_pair import PairSession, SubmitTimes, session, worker
from stratos.rpc.clients.dialer import PLAIN

PROMPTS = (1024, 2048, 4032)
TRANSPORTS = ("shm", "gloo", "tls")
MODES: dict[str, dict[str, str]] = {
    "streamed": {},
    "in turn": {"SCHEDULER__SWITCHES__CHUNKED_PREFILL": "false"},
    "streamed, overlap": {"SCHEDULER__SWITCHES__OVERLAP": "true"},
}


class Client:
    """A session and the worker that computes prompts for it; no prompt comes twice."""

    def __init__(self, session: PairSession, source: WorkerRef, rng: random.Random) -> None:
        self._session, self._source, self._rng = session, source, rng

    async def first_token(self, num_tokens: int, *, is_handed_over: bool) -> SubmitTimes:
        """A request for a token after the first one."""
        prompt = [self._rng.randrange(10, VOCAB) for _ in range(num_tokens)]
        return await self._session.run(prompt, (self._source,) if is_handed_over else (), max_tokens=2)


@asynccontextmanager
async def pair(transport: str, mode: str) -> AsyncIterator[Client]:
    """Both workers, and a session."""
    async with AsyncExitStack() as stack:
        folder, asking, dialer = Path(stack.enter_context(tempfile.TemporaryDirectory())), PLAIN, PLAIN
        if transport == "tls":
            make_certificates(folder / "tls")
            asking, dialer = (
                dialer_of(tls_config(folder / "tls", role)) for role in (PeerRole.ROUTER, PeerRole.GATEWAY)
            )
        settings = {"TRANSPORT__NAMES": json.dumps([transport]), **MODES[mode]}
        source, target = [
            await stack.enter_async_context(worker(role, folder, settings, model=MODEL, dialer=asking))
            for role in (PeerRole.PREFILL_WORKER, PeerRole.DECODE_WORKER)
        ]
        submits = await stack.enter_async_context(session(target, MODEL, dialer))
        yield Client(submits, source.ref, random.Random(f"{transport} {mode}"))


async def measure(transport: str, mode: str, repeat: int) -> list[dict[str, Any]]:
    """A row per prompt length."""
    rows = []
    async with pair(transport, mode) as client:
        for is_handed_over in (False, True):
            await client.first_token(64, is_handed_over=is_handed_over)
        for num_tokens in PROMPTS:
            times = []
            for _ in range(max(3, repeat * PROMPTS[0] // num_tokens)):
                alone, handed = [
                    await client.first_token(num_tokens, is_handed_over=is_handed_over)
                    for is_handed_over in (False, True)
                ]
                times.append((alone.first_s, handed.first_s, handed.receipt.prefill_ns, handed.receipt.transfer_ns))
            rows.append({"transport": transport, "mode": mode, "prompt_tokens": num_tokens, **_row(times)})
            show(rows[-1])
    return rows


def _row(times: list[tuple[float, float, int, int]]) -> dict[str, Any]:
    alone, handed = min(alone for alone, *_ in times), min(handed for _, handed, _, _ in times)
    tail = median(transfer - prefill for _, _, prefill, transfer in times)
    return {
        "alone_ms": round(alone * 1e3, 1),
        "handed_over_ms": round(handed * 1e3, 1),
        "exposed_ms": round((handed - alone) * 1e3, 1),
        "exposed_share": round(handed / alone - 1, 4),
        "tail_ms": round(tail / 1e6, 1),
        "neighbours_ms": [round((handed - alone) * 1e3, 1) for alone, handed, _, _ in times],
    }


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Every transport in every mode."""
    rows = []
    for transport in args.transports:
        for mode in args.modes:
            rows += asyncio.run(measure(transport, mode, args.repeat))
    workload = f"one request at a time, {args.repeat} pairs of the shortest prompt, fewer (3 at least) of longer ones"
    return {"workload": workload, "rows": rows}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--repeat", type=int, default=8, help="pairs of the shortest prompt; longer ones have fewer"),
        flag("--transports", nargs="+", choices=TRANSPORTS, default=TRANSPORTS),
        flag("--modes", nargs="+", choices=tuple(MODES), default=tuple(MODES)),
    )
