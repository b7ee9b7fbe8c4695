#!/usr/bin/env python3
"""Measure what a hand-off of KV takes between two workers, by where their engines run and by transport.

    python scripts/bench_handoff.py --out benchmarks/results/handoff-2core-cpu.json
    python scripts/bench_handoff.py --root ../before --root .      # two checkouts by turns

A prefill and a decode worker serve the shipped model in processes of their own.  The prefill worker has the prompt in
its prefix cache, the decode worker keeps none, so a request is one hand-off of all its KV (6 KiB per token, float32)
and one step.  All placements, transports and checkouts take turns in each round.  Time runs from the grant to the
commit, as the receipt has it; CPU is that of both workers and their engines, for the whole request.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from bench_platform import environment

from stratos.api.worker.v1 import decode_pb2, decode_pb2_grpc, worker_pb2, worker_pb2_grpc
from stratos.core.generation import Submission
from stratos.core.placement import WorkerRole
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.rpc.clients.channel import channel, wait_serving
from stratos.rpc.codec.fleet import status_from_pb
from stratos.rpc.codec.generation import hello, submit_to_pb

ROOT = Path(__file__).resolve().parent.parent
TOKEN_BYTES = 6 * 2 * 4 * 32 * 4
START_S = 120.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Setup:
    """What is compared."""

    root: Path
    placement: str
    transport: str

    @property
    def label(self) -> str:
        return f"{self.root.resolve().name} {self.placement} {self.transport}"


class Worker:
    """One worker service; its address is in a file once it listens."""

    def __init__(self, setup: Setup, role: WorkerRole, folder: Path) -> None:
        self._file = folder / f"{role.value}.json"
        prefix = f"STRATOS_{role.value.upper()}_WORKER_"
        settings = {
            "ADDRESS_FILE": str(self._file),
            "ENGINE_PROCESS": setup.placement,
            "RUNNER__MODEL_PATH": str(ROOT / "models/base"),
            "RUNNER__KV_POOL_BYTES": str(64 * 2**20),
            "RUNNER__NUM_THREADS": "1",
            "SCHEDULER__ENABLE_PREFIX_CACHE": json.dumps(role is WorkerRole.PREFILL),
            "TRANSPORT__NAMES": json.dumps([setup.transport]),
            "TRANSPORT__SHM_DIRECTORY": str(folder / "shm"),
            "ADAPTER_CACHE__DIRECTORY": str(folder / f"adapters-{role.value}"),
            "SELF_CHECK_INTERVAL_S": "0",
            "LOG_LEVEL": "WARNING",
        }
        paths = [setup.root / "libs", *(path for path in (setup.root / "services").iterdir() if path.is_dir())]
        environ = {
            **os.environ,
            **{prefix + name: value for name, value in settings.items()},
            "PYTHONPATH": os.pathsep.join(str(path.resolve()) for path in paths),
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen([sys.executable, "-m", f"stratos_{role.value}_worker"], env=environ)

    async def address(self) -> str:
        """Waits until it listens."""
        async with asyncio.timeout(START_S):
            while not self._file.exists():
                if self._process.poll() is not None:
                    raise RuntimeError("a worker has ended")
                await asyncio.sleep(0.05)
        return str(json.loads(self._file.read_text())["address"])

    def cpu_s(self) -> float:
        """Of it and its engine, so far."""
        return sum(_cpu_s(pid) for pid in _family(self._process.pid))

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _family(int(child))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Pair:
    """Two workers and a session with the one that decodes."""

    def __init__(self, prefill: Worker, decode: Worker) -> None:
        self._workers = prefill, decode
        self._numbers = itertools.count()

    async def open(self, stack: AsyncExitStack) -> None:
        """Wait for both, and connect."""
        channels = []
        for worker in self._workers:
            channels.append(await stack.enter_async_context(channel(await worker.address())))
            await wait_serving(channels[-1], timeout_s=START_S)
        watch = worker_pb2_grpc.WorkerServiceStub(channels[0]).WatchStatus(worker_pb2.WatchStatusRequest())
        self._source = status_from_pb(await watch.read())
        watch.cancel()
        self._session = decode_pb2_grpc.DecodeServiceStub(channels[1]).Session()
        await self._session.write(hello())

    async def request(self, num_tokens: int) -> dict[str, float]:
        """One hand-off; milliseconds."""
        prompt = tuple(5 + 7 * position % 4000 for position in range(num_tokens))
        request = EngineRequest(
            key=RequestKey(f"r{next(self._numbers)}", 0),
            prompt_ids=prompt,
            choices=(ChoiceState(index=0),),
            sampling=SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True),
            seed=1,
        )
        digest, source = self._source.identity.model_digest, self._source.ref
        name = request.key.request_id
        submission = Submission(request=request, model_digest=digest, handoff_id=name, prefill=(source,))
        cpu_s, began_s = sum(worker.cpu_s() for worker in self._workers), time.perf_counter()
        message = submit_to_pb(submission, time.monotonic())
        await self._session.write(decode_pb2.SessionRequest(submit=message))
        receipt = await self._receipt(name)
        took_s = time.perf_counter() - began_s
        assert receipt.prefill_path == decode_pb2.PREFILL_PATH_HANDOFF, receipt
        cpu_s = sum(worker.cpu_s() for worker in self._workers) - cpu_s
        return {"handoff_ms": receipt.transfer_ns / 1e6, "request_ms": took_s * 1e3, "cpu_ms": cpu_s * 1e3}

    async def _receipt(self, request_id: str) -> decode_pb2.Receipt:
        while (message := await self._session.read()) is not grpc.aio.EOF:
            for output in message.step_outputs.outputs:
                if output.request_id == request_id and output.HasField("error"):
                    raise RuntimeError(output.error.message)
                if output.request_id == request_id and output.HasField("receipt"):
                    return output.receipt
        raise RuntimeError("the session ended")


@contextmanager
def _running(setup: Setup, folder: Path) -> Iterator[Pair]:
    folder.mkdir(mode=0o700)
    workers = [Worker(setup, role, folder) for role in (WorkerRole.PREFILL, WorkerRole.DECODE)]
    try:
        yield Pair(workers[0], workers[1])
    finally:
        for worker in workers:
            worker.end()


async def measure(setups: Sequence[Setup], sizes: Sequence[int], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """All set-ups by turns; ticks of CPU time are 10 ms, so its mean is over all rounds."""
    runs: dict[tuple[Setup, int], list[dict[str, float]]] = {}
    async with AsyncExitStack() as stack:
        pairs = {
            setup: stack.enter_context(_running(setup, folder / str(number))) for number, setup in enumerate(setups)
        }
        for pair in pairs.values():
            await pair.open(stack)
        for number, size, (setup, pair) in itertools.product(range(rounds + 1), sizes, pairs.items()):
            one = await pair.request(size)
            if number:  # the first round fills the prefix cache and connects the pair
                runs.setdefault((setup, size), []).append(one)
    return [_summary(setup, size, found) for (setup, size), found in runs.items()]


def _summary(setup: Setup, size: int, found: list[dict[str, float]]) -> dict[str, Any]:
    times = sorted(run["handoff_ms"] for run in found)
    return {
        "setup": setup.label,
        "tokens": size,
        "mib": round((size - 1) * TOKEN_BYTES / 2**20, 1),
        "rounds": len(found),
        "handoff_ms_p50": round(statistics.median(times), 2),
        "handoff_ms_p90": round(times[int(len(times) * 0.9)], 2),
        "request_ms_p50": round(statistics.median(run["request_ms"] for run in found), 2),
        "cpu_ms_mean": round(statistics.fmean(run["cpu_ms"] for run in found), 2),
    }


def main() -> None:
    """Parse arguments, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    parser.add_argument("--root", type=Path, action="append", help="checkout to measure; again for another one")
    parser.add_argument("--placements", default="thread,process")
    parser.add_argument("--transports", default="shm,gloo")
    parser.add_argument("--sizes", default="1025,4033", help="prompt tokens")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    placements, transports = options.placements.split(","), options.transports.split(",")
    setups = [Setup(*one) for one in itertools.product(options.root or [ROOT], placements, transports)]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        sizes = [int(size) for size in options.sizes.split(",")]
        results = asyncio.run(measure(setups, sizes, options.rounds, Path(folder)))
    for result in results:
        print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps({"environment": environment(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
