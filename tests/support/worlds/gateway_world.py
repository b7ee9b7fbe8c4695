"""A real gateway process-in-a-task in front of scriptable decode workers and a router that obeys the test."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import grpc.aio
import httpx
from openai import AsyncOpenAI

from stratos.api.common.v1 import common_pb2
from stratos.api.worker.v1 import decode_pb2, decode_pb2_grpc
from stratos.common.errors import Busy, StratosError
from stratos.core.adapter import Adapter
from stratos.core.features import PROTOCOL_VERSION, Feature
from stratos.core.placement import WorkerRole
from stratos.core.requests.pins import PinnedSpan, cache_writes
from stratos.core.requests.records import RequestKey
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.codec.generation import delta_from_pb, messages_of, step_to_pb, welcome_to_pb
from stratos.rpc.codec.usage import CACHE_WRITES
from stratos.rpc.errors import to_error_detail
from stratos.rpc.serving.process import serve_async
from stratos_gateway.ledger.billing import LedgerAccess
from stratos_gateway.limits.leases import NO_LEASES, Leases
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.parts import Backends
from stratos_gateway.routers.contract import Routers
from stratos_gateway.service import GatewayService
from stratos_gateway.settings import GatewaySettings
from tests.support.fakes.output_session import FakeOutputSession, prompt_logprobs, tell_logprobs
from tests.support.fakes.router import FakeRouter
from tests.support.fakes.scripted_worker import ScriptedWorker
from tests.support.paths import BASE_MODEL
from tests.support.reference.shipped_model import base_digest, shipped_tokenizer
from tests.support.servers.plain_http import plain_client, plain_openai
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.gateway_keys import KEY, FakeBlocks, FakeContent, FakeKeys

END_ID = 4
Script = Callable[[decode_pb2.Submit, int], Sequence[int]]


def say(text: str) -> Script:
    """Every choice says ``text`` and ends."""
    ids = [*shipped_tokenizer().encode_plain(text), END_ID]
    return lambda submit, choice: ids


@dataclass
class FakeDecodeWorker(ScriptedWorker, decode_pb2_grpc.DecodeServiceServicer):
    """Emits what its script says, one token per choice and step; faults are fields."""

    role = WorkerRole.DECODE
    script: Script = field(default_factory=lambda: say("hello world"))
    step_s: float = 0.0
    busy_times: int = 0
    error: StratosError | None = None
    drain_after: int | None = None
    """Tokens of a choice after which requests are handed back."""
    hang_after: int | None = None
    """Tokens of a choice after which nothing at all is said any more."""
    freeze_after: int | None = None
    """The same, but signs of life go on with a standing step counter."""
    die_after: int | None = None
    reset_after: int | None = None
    """Once, after so many tokens of a choice, the session ends while the worker lives."""
    exhaust_after: int | None = None
    """Tokens of a choice that its KV has room for."""
    skip_after: int | None = None
    """A token is left out after so many."""
    cached_tokens: int = 0
    pinned_tokens: int = 0
    kept_tokens: int = 0
    prefill: dict[str, Any] = field(default_factory=dict)  # of its receipts
    logprobs_of: Callable[[decode_pb2.Submit], Sequence[float]] | None = None
    """Log probabilities of all tokens after a prompt, for outputs of one token; else they are made up."""
    features: frozenset[str] = frozenset(Feature)
    protocol_version: int = PROTOCOL_VERSION
    submits: list[decode_pb2.Submit] = field(default_factory=list)
    cancels: list[decode_pb2.Cancel] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    is_hung: bool = False
    is_frozen: bool = False
    knows_columns: bool = True  # one from before them says each token in an entry of its own
    takes_further: bool = True  # several messages in one, which those of 0.1 do not
    sessions: list[FakeOutputSession] = field(default_factory=list)
    prompt_shift: dict[str, float] = field(default_factory=dict)  # of a prompt's log probabilities, by model digest

    def __post_init__(self) -> None:
        self.listen()
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(self, self.server)
        self.step = 0
        self.reset = asyncio.Event()
        self.running: dict[RequestKey, asyncio.Task[None]] = {}

    async def die(self) -> None:
        for task in self.running.values():
            task.cancel()
        await self.stop()

    async def Session(self, request_iterator: Any, context: Any) -> None:
        hello = await context.read()
        assert hello.WhichOneof("message") == "hello"
        session = FakeOutputSession(context, has_columns=self.knows_columns and hello.hello.takes_token_columns)
        self.sessions.append(session)
        welcome = welcome_to_pb(self.ref, self.features)
        welcome.takes_further, welcome.protocol_version = self.takes_further, self.protocol_version
        await context.write(decode_pb2.SessionResponse(welcome=welcome))
        life, reads = asyncio.create_task(self._live(session)), asyncio.create_task(self._read(session))
        resets = asyncio.create_task(self.reset.wait())
        try:
            await asyncio.wait({reads, resets}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (life, reads, resets):
                task.cancel()
            self.reset.clear()

    async def _read(self, session: FakeOutputSession) -> None:
        while (read := await session.context.read()) is not grpc.aio.EOF:
            for message in messages_of(read):
                self._handle(message, session)

    def _handle(self, message: decode_pb2.SessionRequest, session: FakeOutputSession) -> None:
        if message.HasField("submit"):
            submit = message.submit
            self.submits.append(submit)
            key = RequestKey(submit.request_id, submit.attempt)
            session.count_submit(message)
            self.running[key] = asyncio.create_task(self._serve(submit, session))
            self.running[key].add_done_callback(lambda _: self.running.pop(key, None))
        elif message.HasField("attach"):
            session.miss(message.attach)
        elif message.HasField("usage_ack"):
            self.acknowledged += message.usage_ack.request_ids
        elif message.HasField("cancel"):
            self.cancels.append(message.cancel)
            task = self.running.get(RequestKey(message.cancel.request_id, message.cancel.attempt))
            if task is not None and not message.cancel.choice_indexes:
                task.cancel()

    async def _live(self, session: FakeOutputSession) -> None:
        while not self.is_hung:
            progress = decode_pb2.Progress(
                engine_step=self.step, is_computing=bool(self.running), num_submits=session.num_submits
            )
            await session.write(decode_pb2.SessionResponse(progress=progress))
            await asyncio.sleep(0.05)

    async def _serve(self, submit: decode_pb2.Submit, session: FakeOutputSession) -> None:
        error = self.error
        if self.busy_times:
            self.busy_times -= 1
            error = Busy("no room")
        if error is not None:
            return await self._send(session, submit, error=to_error_detail(error))
        state = {c.index: len(c.emitted_ids) for c in submit.choices if not c.finished}
        scripts = {index: list(self.script(submit, index)) for index in state}
        while state:
            await asyncio.sleep(self.step_s)
            if await self._faulty(max(state.values()), submit, session):
                return None
            await self._step(state, scripts, submit, session)
        if submit.HasField("meter"):
            await self.count(session, submit, sum(len(scripts[index]) for index in scripts))
        return None

    async def count(
        self, session: FakeOutputSession, submit: decode_pb2.Submit, num_output: int, **fields: Any
    ) -> None:
        count = decode_pb2.UsageCount(
            request_id=submit.request_id, attempt=submit.attempt, tenant=submit.terms.tenant, meter=submit.meter,
            num_prompt_tokens=len(submit.prompt_ids), num_output_tokens=num_output, device_ns=5_000_000, **fields,
        )  # fmt: skip
        await session.write(decode_pb2.SessionResponse(usage_counts=decode_pb2.UsageCounts(counts=[count])))

    async def _faulty(self, position: int, submit: decode_pb2.Submit, session: FakeOutputSession) -> bool:
        if self.drain_after is not None and position >= self.drain_after:
            await self._send(session, submit, error=common_pb2.ErrorDetail(code="draining", message="leaving"))
            return True
        if self.die_after is not None and position >= self.die_after:
            task = asyncio.create_task(self.die())
            await asyncio.shield(asyncio.gather(task, return_exceptions=True))
            return True
        if self.reset_after is not None and position >= self.reset_after:
            self.reset_after = None
            self.reset.set()
            return True
        if self.hang_after is not None and position >= self.hang_after:
            self.is_hung = True
        if self.freeze_after is not None and position >= self.freeze_after:
            self.is_frozen = True
        if self.is_hung or self.is_frozen:
            await asyncio.Event().wait()
        return False

    async def _step(
        self,
        state: dict[int, int],
        scripts: dict[int, list[int]],
        submit: decode_pb2.Submit,
        session: FakeOutputSession,
    ) -> None:
        self.step += 1
        is_first = all(state[c.index] == len(c.emitted_ids) for c in submit.choices if c.index in state)
        deltas = []
        for index, position in list(state.items()):
            ids, params = scripts[index], submit.sampling
            skipped = 1 if self.skip_after == position else 0
            token = ids[position + skipped]
            delta = decode_pb2.ChoiceDelta(index=index, offset=position + skipped, token_ids=[token])
            if params.HasField("num_logprobs") and self.logprobs_of is not None:
                tell_logprobs(delta, token, self.logprobs_of(submit), params.num_logprobs)
            elif params.HasField("num_logprobs"):
                entry = delta.logprobs.add()
                entry.sampled.token_id, entry.sampled.logprob, entry.sampled.rank = token, -0.5, 1
                for rank in range(params.num_logprobs):
                    entry.top.add(token_id=token + rank, logprob=-0.5 - rank, rank=1 + rank)
            state[index] = position + 1 + skipped
            if token == END_ID and not params.ignore_eos:
                delta.finish_reason = decode_pb2.FINISH_REASON_STOP
            elif state[index] >= params.max_tokens:
                delta.finish_reason = decode_pb2.FINISH_REASON_LENGTH
            elif self.exhaust_after is not None and state[index] >= self.exhaust_after:
                delta.finish_reason = decode_pb2.FINISH_REASON_EXHAUSTED
            if delta.finish_reason:
                del state[index]
            deltas.append(delta)
        receipt = self._receipt(submit) if is_first else None
        is_scored = is_first and submit.sampling.HasField("num_prompt_logprobs")
        prompt = prompt_logprobs(submit, self.prompt_shift.get(submit.model_digest, 0.0)) if is_scored else []
        await self._send(session, submit, deltas=deltas, receipt=receipt, prompt_logprobs=prompt)

    def _receipt(self, submit: decode_pb2.Submit) -> decode_pb2.Receipt:
        """It keeps what breakpoints ask for, up to a bound, and has kept some of the prompt already."""
        begin, spans = 0, []
        for mark in sorted(submit.terms.pins.breakpoints, key=lambda mark: -mark.ttl_s):
            end = min(mark.num_tokens, self.pinned_tokens)
            spans += [PinnedSpan(begin, end, mark.ttl_s)] if end > begin else []
            begin = max(begin, end)
        writes = cache_writes(spans, self.kept_tokens, self.cached_tokens)
        return decode_pb2.Receipt(
            num_cached_tokens=self.cached_tokens, num_pinned_tokens=begin, writes=CACHE_WRITES.to_pb(writes),
            **self.prefill,
        )  # fmt: skip

    async def _send(self, session: FakeOutputSession, submit: decode_pb2.Submit, **fields: Any) -> None:
        delta = delta_from_pb(decode_pb2.RequestOutput(request_id=submit.request_id, attempt=submit.attempt, **fields))
        outputs = step_to_pb(self.step, session.num_submits, [delta], session.submit_of)
        session.num_in_columns += len(outputs.tokens.submits)
        await session.write(decode_pb2.SessionResponse(step_outputs=outputs))


@dataclass
class FakeAdapters:
    """Adapters by tenant; ``error`` is what an unknown name gets in an outage."""

    adapters: dict[str, list[Adapter]] = field(default_factory=dict)
    error: StratosError | None = None

    async def find(self, tenant: str, name: str) -> Adapter | None:
        found = next((adapter for adapter in self.list(tenant) if adapter.name == name), None)
        if found is None and self.error is not None:
            raise self.error
        return found

    def list(self, tenant: str) -> Sequence[Adapter]:
        return [*self.adapters.get("", ()), *self.adapters.get(tenant, ())]


def make_adapter(name: str, **changes: Any) -> Adapter:
    fields: dict[str, Any] = {
        "tenant": "",
        "name": name,
        "base_model_digest": base_digest(),
        "uri": f"adapters/{name}",
        "digest": f"digest-of-{name}",
        "rank": 8,
        "alpha": 16.0,
        "target_modules": ("q_proj",),
        "num_bytes": 1,
        "created_unix_s": 1,
        **changes,
    }
    return Adapter(**fields)


@dataclass
class World:
    """What a test needs."""

    service: GatewayService
    workers: list[FakeDecodeWorker]
    router: FakeRouter
    registry: FakeAdapters
    http: httpx.AsyncClient
    stop: asyncio.Event
    force: asyncio.Event
    """Ends the process without lag and drain, once ``stop`` is set."""
    exit_code: asyncio.Task[int]
    keys: FakeKeys
    blocks: FakeBlocks
    content: FakeContent

    @property
    def worker(self) -> FakeDecodeWorker:
        return self.workers[0]

    @cached_property
    def openai(self) -> AsyncOpenAI:
        """Few tests need it, and it takes as long to make as a twentieth of a gateway."""
        return plain_openai(str(self.http.base_url).rstrip("/"), KEY, LIMIT_S)

    def metric(self, name: str, **labels: str) -> float:
        # Its family alone is collected: conditions ask many times a second.
        samples = (s for f in self.service.metrics.restricted_registry([name]).collect() for s in f.samples)
        return next((s.value for s in samples if (s.name, s.labels) == (name, labels)), 0.0)

    async def wait_idle(self) -> None:
        """Nothing is held by any request."""
        await eventually(lambda: self.metric("stratos_requests_open") == 0, "no open request")
        await eventually(lambda: len(self.router.completed) == self.router.num_placed, "all placements completed")

    async def wait_placements_completed(self) -> None:
        """Every placement was reported as ended."""
        await eventually(lambda: len(self.router.completed) == len(self.router.requests), "placements completed")

    @property
    def placed(self) -> int:
        return sum(len(w.submits) for w in self.workers)


@asynccontextmanager
async def gateway_world(
    num_workers: int = 1,
    leases: Leases = NO_LEASES,
    ledger_access: LedgerAccess | None = None,
    routers: Routers | None = None,
    **overrides: Any,
) -> AsyncIterator[World]:
    """Start workers and a gateway; fields of ``GatewaySettings`` may be overridden.

    With ``routers`` of the test's own, the world's router is asked nothing.
    """
    async with AsyncExitStack() as stack:
        workers = [FakeDecodeWorker(f"decode-{i}") for i in range(num_workers)]
        for worker in workers:
            await worker.server.start()
            stack.push_async_callback(worker.die)
        router, registry, keys, blocks = FakeRouter(workers), FakeAdapters(), FakeKeys(), FakeBlocks()
        content = FakeContent()

        async def open_backends(
            settings: GatewaySettings, _: ModelSet, __: AsyncExitStack, ___: GatewayMetrics, ____: Dialer
        ) -> Backends:
            return Backends(
                routers=routers or router,
                adapters=registry,
                authenticator=keys,
                blocks=blocks,
                leases=leases,
                content=content,
                ledger=ledger_access,
                sub_key=lambda tenant_id, purpose: hashlib.sha256(f"{tenant_id} {purpose}".encode()).digest(),
            )

        values: dict[str, Any] = {
            "http_listen": "127.0.0.1:0",
            "router_addresses": ("unused:1",),
            "redis_url": "redis://unused",
            "key_pepper": "unused-unused-unused",
            "sessions": {"connect_timeout_s": LIMIT_S, "silence_timeout_s": 5.0, "step_timeout_s": 5.0},
            "drain_timeout_s": 2.0,
            **overrides,
            "model": {"path": BASE_MODEL, **overrides.get("model", {})},
        }
        settings = GatewaySettings(**values)
        service, stop, force = GatewayService(settings, open_backends), asyncio.Event(), asyncio.Event()
        exit_code = asyncio.create_task(serve_async(service, settings, stop=stop, force=force))
        await eventually(lambda: service.address or exit_code.done(), "the gateway listens")
        base_url = f"http://{service.http_address}"
        http = await stack.enter_async_context(
            plain_client(base_url, headers={"authorization": f"Bearer {KEY}"}, timeout=LIMIT_S)
        )
        world = World(service, workers, router, registry, http, stop, force, exit_code, keys, blocks, content)
        try:
            yield world
        finally:
            if "openai" in vars(world):
                await world.openai.close()
            stop.set()
            assert await exit_code == 0
