"""A prefill and a decode worker in processes of their own, and a session that submits one request at a time."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from stratos.api.worker.v1 import decode_pb2, decode_pb2_grpc, worker_pb2, worker_pb2_grpc
from stratos.common.tls.identity import PeerRole
from stratos.core.files.model_files import read_model_files
from stratos.core.generation import PrefillPath, Receipt, Submission
from stratos.core.placement import WorkerRef
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.pki.local import tls_config, tls_environment
from stratos.rpc.clients.dialer import ANY_WORKER, PLAIN, Dialer
from stratos.rpc.codec import generation
from stratos.rpc.codec.fleet import WORKER_STATUS

START_TIMEOUT_S, REQUEST_TIMEOUT_S = 180.0, 60.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class PairWorker:
    """Process that serves, and its engine."""

    ref: WorkerRef
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds of the worker and its engine, so far."""
        return sum(_cpu_s(pid) for pid in _family(self.pid))


@asynccontextmanager
async def worker(
    role: PeerRole,
    folder: Path,
    settings: Mapping[str, str],
    *,
    model: Path,
    dialer: Dialer = PLAIN,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[PairWorker]:
    """A worker with a model and one thread of computation.

    Args:
        role: of a prefill or decode worker.
        folder: of both workers' files; with certificates in ``tls`` where the dialer has some.
        settings: by name, without the service's prefix.
        model: folder of it.
        dialer: asks it for its status.
        environ: of its process.
    """
    service, address_file = role.value.replace("-", "_"), folder / f"{role.value}.json"
    values = {
        "RUNNER__MODEL_PATH": str(model), "RUNNER__NUM_THREADS": "1", "ADDRESS_FILE": str(address_file),
        "WORKER_ID": role.value, "LOG_LEVEL": "WARNING",
        "TRANSPORT__SHM_DIRECTORY": str(folder / "shm"), "ADAPTER_CACHE__DIRECTORY": str(folder / service), **settings,
    }  # fmt: skip
    if dialer.tls is not None:
        values |= tls_environment(tls_config(folder / "tls", role))
    named = {f"STRATOS_{service.upper()}_{name}": value for name, value in values.items()}
    command = (sys.executable, "-m", f"stratos_{service}")
    process = await asyncio.create_subprocess_exec(*command, env={**environ, **named})
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not address_file.exists():
                if process.returncode is not None:
                    raise RuntimeError(f"{service} ended with {process.returncode}")
                await asyncio.sleep(0.05)
        async with dialer.channel(json.loads(address_file.read_text())["address"], ANY_WORKER) as peer:
            watch = worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(worker_pb2.WatchStatusRequest())
            ref = WORKER_STATUS.from_pb(await watch.read()).ref
            watch.cancel()
        yield PairWorker(ref, process.pid)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _family(int(child))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@dataclass(frozen=True, slots=True)
class SubmitTimes:
    """Times of one request."""

    first_s: float
    """From its submission to its first token."""
    total_s: float
    receipt: Receipt


class PairSession:
    """Session with a decode worker, one request at a time."""

    def __init__(self, call: Any, model: Path) -> None:
        self._call, self._digest, self._numbers = call, read_model_files(model).digest, itertools.count(1)

    async def run(self, prompt_ids: Sequence[int], prefill: tuple[WorkerRef, ...], *, max_tokens: int) -> SubmitTimes:
        """Submit a request and wait for its end.

        Raises:
            RuntimeError: a source was named, and the prompt was not handed over.
            StratosError: it failed.
        """
        number = next(self._numbers)
        name = str(number)
        request = EngineRequest(
            key=RequestKey(f"r{name}", 0),
            prompt_ids=tuple(prompt_ids),
            choices=(ChoiceState(index=0),),
            sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
            seed=0,
            terms=RequestTerms(tenant="bench"),
        )
        submission = Submission(request=request, model_digest=self._digest, handoff_id=f"h{name}", prefill=prefill)
        part = generation.submit_to_part(submission, time.monotonic())
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            done = await self._until_end(decode_pb2.SessionRequest(submit=part, submit_number=number))
        if prefill and done.receipt.prefill_path is not PrefillPath.HANDOFF:
            raise RuntimeError(f"the prompt was not handed over: {done.receipt}")
        return done

    async def _until_end(self, message: decode_pb2.SessionRequest) -> SubmitTimes:
        begin_s = time.perf_counter()
        await self._call.write(message)
        first_s, receipt = 0.0, Receipt()
        while True:
            answer = await self._call.read()
            if answer is grpc.aio.EOF:
                raise RuntimeError("the session ended")
            for output in answer.step_outputs.outputs:  # of tokens in columns none is the first or the last
                delta = generation.delta_from_pb(output)
                if delta.error is not None:
                    raise delta.error
                receipt = delta.receipt or receipt
                if not first_s and any(choice.token_ids for choice in delta.choices):
                    first_s = time.perf_counter() - begin_s
                if any(choice.finish_reason for choice in delta.choices):
                    return SubmitTimes(first_s, time.perf_counter() - begin_s, receipt)


@asynccontextmanager
async def session(target: PairWorker, model: Path, dialer: Dialer = PLAIN) -> AsyncIterator[PairSession]:
    """A session with a decode worker."""
    async with dialer.channel(target.ref.address, ANY_WORKER) as channel:
        call = decode_pb2_grpc.DecodeServiceStub(channel).Session()
        try:
            await call.write(generation.hello(takes_columns=True))
            if await call.read() is grpc.aio.EOF:
                raise RuntimeError("the decode worker takes no session")
            yield PairSession(call, model)
        finally:
            call.cancel()
