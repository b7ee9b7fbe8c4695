"""Workers in one event loop, each served by the real lifecycle, and a gateway that speaks Session to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc.aio

from stratos.api.worker.v1 import decode_pb2, decode_pb2_grpc
from stratos.core.ledger.usage import UsageCount
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.kv_transfer.port.local import LocalPort
from stratos.rpc.clients.channel import channel, wait_serving
from stratos.rpc.codec import generation
from stratos.rpc.codec.fleet import REF
from stratos.rpc.codec.usage import counts_from_pb, usage_ack
from stratos.rpc.serving.process import serve_async
from stratos.rpc.settings import env_name_of, settings_of
from stratos.worker.adapter_cache import open_adapter_store
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.engine_client.factory import drive_engine, make_engine
from stratos.worker.engine_client.process import ProcessEngine
from stratos.worker.service import WorkerProcess
from stratos.worker.settings import WorkerSettings
from stratos_decode_worker.settings import DecodeWorkerSettings
from stratos_prefill_worker.settings import PrefillWorkerSettings
from tests.support.kv.kv_faults import Fault, FaultPlan, with_faults
from tests.support.servers import warm_process
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.engine_clients import ENGINE, fork
from tests.support.worlds.terms import pop_terms_pb

PREFILL_WEIGHT, DECODE_WEIGHT = 3, 5


@dataclass
class Worker:
    """A served worker."""

    process: WorkerProcess
    stop: asyncio.Event
    exit_code: asyncio.Task[int]
    cores: list[EngineCore]
    """Its engine, where that is in this process."""

    @property
    def ref(self) -> WorkerRef:
        return self.process.me()

    @property
    def blocks(self) -> Any:
        return self.process.opened.context.engine.status().blocks

    def assert_baseline(self) -> bool:
        blocks, staging = self.blocks, self.process.opened.context.transports.ledger()
        return bool(
            blocks.free + blocks.cached == blocks.total
            and staging.free == staging.total
            and not self.process.status().num_handoffs
            and not self.process.opened.table.num_open_tasks
            and self.process.opened.context.engine.status().num_prefill_jobs == 0
        )

    async def wait_baseline(self) -> None:
        await eventually(self.assert_baseline, f"{self.process.name} back to baseline: {self.blocks}")

    def inject(self, transport: str, faults: dict[int, Fault]) -> FaultPlan:
        """Let frames that this worker sends from now on suffer ``faults``."""
        plan = FaultPlan(faults=faults)
        port = self.process.opened.context.transports.port
        assert isinstance(port, LocalPort), "faults of another process' port are its own"
        sound = port._transports[transport]
        port._transports[transport] = replace(sound, make=lambda: with_faults(sound.make(), plan))
        return plan

    def metric(self, name: str, **labels: str) -> float:
        return self.process.metrics.get_sample_value(name, labels) or 0.0


def make_settings(role: WorkerRole, tmp_path: Path, **overrides: Any) -> WorkerSettings:
    is_prefill = role is WorkerRole.PREFILL
    values: dict[str, Any] = {
        "engine": "fake",
        "worker_id": f"{role.value}-0",
        "fake": {"worker_weight": PREFILL_WEIGHT if is_prefill else DECODE_WEIGHT, "num_blocks": 72},
        "transport": {"names": ["shm"], "shm_directory": tmp_path / "shm"},
        "adapter_cache": {"directory": tmp_path / f"adapters-{role.value}"},
        "scheduler": {"max_num_batched_tokens": 64},
        "drain_timeout_s": 5.0,
        "stop_grace_s": 0.2,
    }
    for name, value in overrides.items():
        values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value
    return (PrefillWorkerSettings if is_prefill else DecodeWorkerSettings)(**values)


def environment_of(settings: WorkerSettings) -> dict[str, str]:
    """The environment that makes a process read equal settings."""
    cls, tree = type(settings), settings.model_dump(mode="json")
    environ = {}
    for setting in settings_of(cls):
        value: Any = tree
        for name in setting.path:
            value = None if value is None else value[name]
        if value is not None:
            environ[env_name_of(cls, setting.path)] = value if isinstance(value, str) else json.dumps(value)
    return environ


def _make_engine(settings: WorkerSettings, change_fake: Callable[[FakeConfig], FakeConfig] | None) -> EngineCore:
    engine = make_engine(settings)
    if change_fake is not None:
        runner = engine.runner
        assert isinstance(runner, FakeRunner)
        runner.config = change_fake(runner.config)
    return engine


def _make_client(
    settings: WorkerSettings,
    change_fake: Callable[[FakeConfig], FakeConfig] | None,
    program: str,
    cores: list[EngineCore],
) -> EngineClient:
    if program or settings.has_engine_process:
        assert change_fake is None, "the engine is made elsewhere"
        return ProcessEngine(settings.model_dump_json().encode(), command=(program or ENGINE,), launch=fork)
    cores.append(_make_engine(settings, change_fake))
    return drive_engine(cores[0], settings)


class World:
    """Starts workers; stops them in the end."""

    def __init__(self, tmp_path: Path, stack: AsyncExitStack) -> None:
        self._tmp_path = tmp_path
        self._stack = stack

    async def start(
        self,
        role: WorkerRole,
        change_fake: Callable[[FakeConfig], FakeConfig] | None = None,
        *,
        engine_program: str = "",
        **overrides: Any,
    ) -> Worker:
        """``engine_program`` is a module of the tests whose process has the engine."""
        settings = make_settings(role, self._tmp_path, **overrides)
        if engine_program or settings.has_engine_process:  # the template's imports are no part of a start
            await asyncio.to_thread(warm_process.prepare)
        stop, cores = asyncio.Event(), list[EngineCore]()
        process = WorkerProcess(
            role,
            settings,
            make_engine=lambda s: _make_client(s, change_fake, engine_program, cores),
            make_store=open_adapter_store,
        )
        worker = Worker(process, stop, asyncio.create_task(serve_async(process, settings, stop=stop)), cores)
        self._stack.push_async_callback(self._stop, worker)
        await eventually(lambda: process.address or worker.exit_code.done(), "listening")
        async with channel(process.address) as peer:
            await wait_serving(peer, timeout_s=LIMIT_S)
        return worker

    async def gateway(
        self, worker: Worker | str, *, takes_columns: bool = True, numbers_submits: bool = True
    ) -> Gateway:
        address = worker if isinstance(worker, str) else worker.process.address
        gateway = Gateway(address, takes_columns=takes_columns, numbers_submits=numbers_submits)
        await gateway.open()
        self._stack.push_async_callback(gateway.close)
        return gateway

    @staticmethod
    async def _stop(worker: Worker) -> None:
        worker.stop.set()
        await asyncio.wait({worker.exit_code})


@asynccontextmanager
async def open_world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(tmp_path, stack)


@dataclass
class Stream:
    """What a gateway has of one request."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    finish: dict[int, int] = field(default_factory=dict)
    error: Any = None
    receipt: Any = None
    num_choices: int = 1
    """Open choices of the request."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_over(self) -> bool:
        return self.error is not None or (len(self.finish) == self.num_choices)

    async def over(self) -> Stream:
        await eventually(lambda: self.is_over, "the request's end")
        return self

    async def wait_tokens(self, count: int) -> None:
        await eventually(lambda: len(self.tokens.get(0, [])) >= count or self.is_over, f"{count} tokens")


class Gateway:
    """One session; collects deltas and checks that offsets leave no hole."""

    def __init__(self, address: str, *, takes_columns: bool = True, numbers_submits: bool = True) -> None:
        self._channel = channel(address)
        self._takes_columns = takes_columns
        self._numbers_submits = numbers_submits
        self._submitted: list[tuple[str, int]] = []
        self.num_in_columns = 0
        """Tokens that came in columns."""
        self.streams: dict[tuple[str, int], Stream] = {}
        self.worker: Any = None
        self.features: frozenset[str] = frozenset()
        self.num_progress = 0
        self.num_taken = 0
        """Submits of the session that the worker says that it took."""
        self.is_ended = False
        self.counts: list[UsageCount] = []

    async def open(self) -> None:
        self.call = decode_pb2_grpc.DecodeServiceStub(self._channel).Session()
        await self.call.write(generation.hello(takes_columns=self._takes_columns))
        welcome = (await self.call.read()).welcome
        self.worker, self.features = welcome.worker, frozenset(welcome.features)
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        self.call.cancel()
        await asyncio.wait({self._reader})
        await self._channel.close()
        self._reader.result()  # what it could not read fails the test

    async def submit(self, prompt: list[int], *, around: bytes = b"", **fields: Any) -> Stream:
        """``around`` is what a later build says beside the submit."""
        message = make_submit(prompt, **fields)
        num_choices = sum(not choice.finished for choice in message.choices)
        stream = self.streams[message.request_id, message.attempt] = Stream(num_choices=max(num_choices, 1))
        self._submitted.append((message.request_id, message.attempt))
        number = len(self._submitted) if self._numbers_submits else 0
        request = decode_pb2.SessionRequest(submit=message, submit_number=number)
        request.MergeFromString(around)
        await self.call.write(request)
        return stream

    async def cancel(self, request_id: str, attempt: int = 0, indexes: tuple[int, ...] = ()) -> None:
        cancel = decode_pb2.Cancel(request_id=request_id, attempt=attempt, choice_indexes=indexes)
        await self.call.write(decode_pb2.SessionRequest(cancel=cancel))

    async def attach(
        self, request_id: str, received: list[int], attempt: int = 0, *, takes_over: bool = False
    ) -> Stream:
        stream = self.streams[request_id, attempt] = Stream(tokens={0: list(received)})
        attach = decode_pb2.Attach(
            request_id=request_id, attempt=attempt, num_received={0: len(received)}, takes_over=takes_over
        )
        await self.call.write(decode_pb2.SessionRequest(attach=attach))
        return stream

    async def acknowledge(self, *request_ids: str) -> None:
        await self.call.write(decode_pb2.SessionRequest(**usage_ack(request_ids)))

    async def _read(self) -> None:
        try:
            while (message := await self.call.read()) is not grpc.aio.EOF:
                self.num_progress += message.HasField("progress")
                if message.HasField("usage_counts"):
                    self.counts += counts_from_pb(message.usage_counts)
                    continue
                is_outputs = message.HasField("step_outputs")
                self.num_taken = (message.step_outputs if is_outputs else message.progress).num_submits
                for output in message.step_outputs.outputs:
                    self._take(output)
                tokens = message.step_outputs.tokens
                for number, offset, token in zip(tokens.submits, tokens.offsets, tokens.token_ids, strict=True):
                    request_id, attempt = self._submitted[number - 1]
                    delta = decode_pb2.ChoiceDelta(offset=offset, token_ids=[token])
                    self._take(decode_pb2.RequestOutput(request_id=request_id, attempt=attempt, deltas=[delta]))
                    self.num_in_columns += 1
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            return
        finally:
            self.is_ended = True

    def _take(self, output: Any) -> None:
        stream = self.streams.setdefault((output.request_id, output.attempt), Stream())
        for delta in output.deltas:
            tokens = stream.tokens.setdefault(delta.index, [None] * delta.offset)
            assert delta.offset == len(tokens), "a hole or a repeat"
            tokens.extend(delta.token_ids)
            if delta.finish_reason:
                stream.finish[delta.index] = delta.finish_reason
        if output.HasField("error"):
            stream.error = output.error
        if output.HasField("receipt"):
            stream.receipt = output.receipt


def make_submit(
    prompt: list[int],
    *,
    request_id: str = "req-1",
    attempt: int = 0,
    max_tokens: int = 4,
    prefill: tuple[Worker | WorkerRef, ...] = (),
    choices: list[decode_pb2.ChoiceState] | None = None,
    sampling: dict[str, Any] | None = None,
    handoff_id: str = "",
    **fields: Any,
) -> decode_pb2.Submit:
    refs = [w.ref if isinstance(w, Worker) else w for w in prefill]
    values = {"top_p": 1.0, "repetition_penalty": 1.0, "max_tokens": max_tokens} | (sampling or {})
    return decode_pb2.Submit(
        request_id=request_id,
        attempt=attempt,
        handoff_id=handoff_id or f"handoff-{request_id}-{attempt}",
        prompt_ids=prompt,
        choices=choices or [decode_pb2.ChoiceState(index=0)],
        sampling=decode_pb2.SamplingParams(**values),
        seed=1,
        prefill=[REF.to_pb(ref) for ref in refs],
        **({"model_digest": "fake", "terms": pop_terms_pb(fields)} | fields),
    )
