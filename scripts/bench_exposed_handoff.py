#!/usr/bin/env python3
"""Measure what a first token waits for because its prompt is computed by another worker: the exposed hand-off.

    python scripts/bench_exposed_handoff.py --out benchmarks/results/exposed-handoff-2core-cpu.json

A prefill and a decode worker, each a process with one thread of computation; the shipped model in float32 (6 KiB of
KV per token).  By turns a random prompt is computed by the decode worker itself and by the prefill worker, which hands
its KV over; a time runs from the submission on the decode worker's session to the first token.  The exposed part is the
difference of two neighbours, given in ms and as a share of the time without a hand-off; all are medians.

Modes: ``streamed`` sends the frames of a chunk of 512 tokens beside the computation of the next one (the default on a
CPU); ``in turn`` computes the prompt in one step, so all frames come after it (SCHEDULER__ENABLE_CHUNKED_PREFILL off);
``streamed, overlap`` also launches steps ahead of the host (SCHEDULER__ENABLE_OVERLAP on).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import grpc.aio
from bench_platform import MODEL, VOCAB, environment, publish

from stratos.api.worker.v1 import decode_pb2, decode_pb2_grpc, worker_pb2, worker_pb2_grpc
from stratos.cli.certificates.local import dialer_of, make_certificates, tls_config, tls_environment
from stratos.common.tls.identity import PeerRole
from stratos.core.files.model_files import read_model_files
from stratos.core.generation import PrefillPath, Receipt, Submission
from stratos.core.placement import WorkerRef
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.rpc.clients.dialer import ANY_WORKER, PLAIN, Dialer
from stratos.rpc.codec import generation
from stratos.rpc.codec.fleet import status_from_pb

PROMPTS = (1024, 2048, 4032)
TRANSPORTS = ("shm", "gloo", "tls")
MODES: dict[str, dict[str, str]] = {
    "streamed": {},
    "in turn": {"SCHEDULER__ENABLE_CHUNKED_PREFILL": "false"},
    "streamed, overlap": {"SCHEDULER__ENABLE_OVERLAP": "true"},
}
START_TIMEOUT_S, REQUEST_TIMEOUT_S = 60.0, 60.0


@dataclass(frozen=True, slots=True)
class First:
    """Of one request."""

    seconds: float
    receipt: Receipt


@asynccontextmanager
async def worker(role: PeerRole, folder: Path, settings: dict[str, str], dialer: Dialer) -> AsyncIterator[WorkerRef]:
    """A worker service in a process of its own."""
    service, address_file = role.value.replace("-", "_"), folder / f"{role.value}.json"
    values = {
        "RUNNER__MODEL_PATH": str(MODEL), "RUNNER__NUM_THREADS": "1", "ADDRESS_FILE": str(address_file),
        "WORKER_ID": role.value, "LOG_LEVEL": "WARNING",
        "TRANSPORT__SHM_DIRECTORY": str(folder / "shm"), "ADAPTER_CACHE__DIRECTORY": str(folder / service), **settings,
    }  # fmt: skip
    if dialer.tls is not None:
        values |= tls_environment(tls_config(folder / "tls", role))
    environ = {f"STRATOS_{service.upper()}_{name}": value for name, value in values.items()}
    command = (sys.executable, "-m", f"stratos_{service}")
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | environ)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not address_file.exists():
                if process.returncode is not None:
                    raise RuntimeError(f"{service} ended with {process.returncode}")
                await asyncio.sleep(0.05)
        async with dialer.channel(json.loads(address_file.read_text())["address"], ANY_WORKER) as peer:
            status = worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(worker_pb2.WatchStatusRequest())
            yield status_from_pb(await status.read()).ref
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


class Client:
    """A session with the decode worker, one request at a time."""

    def __init__(self, call: Any, rng: random.Random) -> None:
        self._call, self._rng, self._digest = call, rng, read_model_files(MODEL).digest
        self._count = 0

    async def first_token(self, num_tokens: int, prefill: tuple[WorkerRef, ...]) -> First:
        """Submit a new prompt and wait for its end, a token after the first one."""
        self._count += 1
        request = EngineRequest(
            key=RequestKey(f"r{self._count}", 0),
            prompt_ids=tuple(self._rng.randrange(10, VOCAB) for _ in range(num_tokens)),
            choices=(ChoiceState(index=0),),
            sampling=SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
            seed=0,
            terms=RequestTerms(tenant="bench"),
        )
        submission = Submission(
            request=request, model_digest=self._digest, handoff_id=f"h{self._count}", prefill=prefill
        )
        message = generation.submit_to_pb(submission, time.monotonic())
        begin_s = time.perf_counter()
        await self._call.write(decode_pb2.SessionRequest(submit=message))
        first_s, receipt = 0.0, Receipt()
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            while True:
                for output in (await self._call.read()).step_outputs.outputs:
                    delta = generation.delta_from_pb(output)
                    if delta.error is not None:
                        raise delta.error
                    receipt = delta.receipt or receipt
                    if not first_s and any(choice.token_ids for choice in delta.choices):
                        first_s = time.perf_counter() - begin_s
                    if any(choice.finish_reason for choice in delta.choices):
                        return First(first_s, receipt)


@asynccontextmanager
async def pair(transport: str, mode: str) -> AsyncIterator[tuple[Client, WorkerRef]]:
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
            await stack.enter_async_context(worker(role, folder, settings, asking))
            for role in (PeerRole.PREFILL_WORKER, PeerRole.DECODE_WORKER)
        ]
        channel = await stack.enter_async_context(dialer.channel(target.address, ANY_WORKER))
        call = decode_pb2_grpc.DecodeServiceStub(channel).Session()
        stack.callback(call.cancel)
        await call.write(generation.hello())
        if await call.read() is grpc.aio.EOF:
            raise RuntimeError("the decode worker takes no session")
        yield Client(call, random.Random(f"{transport} {mode}")), source


async def measure(transport: str, mode: str, repeat: int) -> list[dict[str, Any]]:
    """A row per prompt length."""
    rows = []
    async with pair(transport, mode) as (client, source):
        for prefill in ((), (source,)):
            await client.first_token(64, prefill)
        for num_tokens in PROMPTS:
            times = []
            for _ in range(repeat):
                alone, handed = [await client.first_token(num_tokens, prefill) for prefill in ((), (source,))]
                if handed.receipt.prefill_path is not PrefillPath.HANDOFF:
                    raise RuntimeError(f"the prompt was not handed over: {handed.receipt}")
                times.append((alone.seconds, handed.seconds, handed.receipt.prefill_ns, handed.receipt.transfer_ns))
            rows.append({"transport": transport, "mode": mode, "prompt_tokens": num_tokens, **_row(times)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _row(times: list[tuple[float, float, int, int]]) -> dict[str, Any]:
    exposed = [handed - alone for alone, handed, _, _ in times]
    return {
        "alone_ms": round(median(alone for alone, *_ in times) * 1e3, 1),
        "handed_over_ms": round(median(handed for _, handed, _, _ in times) * 1e3, 1),
        "exposed_ms": round(median(exposed) * 1e3, 1),
        "exposed_share": round(median(handed / alone - 1 for alone, handed, _, _ in times), 4),
        "exposed_ms_each": [round(value * 1e3, 1) for value in exposed],
        "prefill_ms": round(median(prefill for _, _, prefill, _ in times) / 1e6, 1),
        "transfer_ms": round(median(transfer for *_, transfer in times) / 1e6, 1),
    }


def main() -> None:
    """Run everything and print, or write, one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=TRANSPORTS)
    parser.add_argument("--modes", nargs="+", choices=tuple(MODES), default=tuple(MODES))
    args = parser.parse_args()
    rows = []
    for transport in args.transports:
        for mode in args.modes:
            rows += asyncio.run(measure(transport, mode, args.repeat))
    workload = f"one request at a time, {args.repeat} pairs per row, one thread of computation per worker"
    publish({"environment": environment(), "workload": workload, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
