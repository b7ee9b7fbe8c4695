"""Gateway and worker in one process: every line takes the way that it takes in a platform.

The gateway has no port, no Redis and no keys; its one tenant has no limits.  Everything between a line and its answer
is the platform's own code: checks, templates, seeds, sampling, stop strings, the shape of answers and errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from prometheus_client import CollectorRegistry

from stratos.common.background import end_tasks
from stratos.common.clock import SystemClock
from stratos.common.errors import InvalidApiKey, StratosError
from stratos.core.placement import WorkerRole
from stratos.core.tenant import Tenant
from stratos.rpc.clients.dialer import PLAIN, Dialer
from stratos.rpc.tracing import TRACING_OFF
from stratos_gateway.answering.request import BatchLine
from stratos_gateway.batches.calls import LineCalls
from stratos_gateway.batches.gate import LineGate
from stratos_gateway.batches.slices import answer_line, result_line
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.observe.request_book import RequestBook
from stratos_gateway.parts import Backends, Surroundings, open_parts
from stratos_gateway.routers.contract import Routers
from stratos_gateway.settings import GatewaySettings
from stratos_gateway.wiring import build_edge, build_gateway
from stratos_offline.blocks import Row
from stratos_offline.engines.contract import LineEngine, NumberedLine
from stratos_offline.engines.placement import OneWorker
from stratos_offline.engines.worker import checked, running_worker
from stratos_offline.options import EngineAsk, EngineOptions, LineIdentity

TENANT = "offline"
_LONG_S = 7 * 24 * 3600.0
"""No client waits for a line, however long its prompt or its answer takes."""


class NoKeys:
    """Nothing comes in by a key."""

    async def authenticate(self, key: str) -> Tenant:
        """No key is known."""
        raise InvalidApiKey("an offline engine has no keys")

    def refusal(self, tenant: Tenant) -> StratosError | None:
        """No line is ever stopped."""
        return None


class WholeEngine:
    """Answers lines.

    Args:
        calls: of the gateway.
        gate: how many at a time.
        identity: of the lines.
    """

    def __init__(self, calls: LineCalls, gate: LineGate, identity: LineIdentity) -> None:
        self._calls = calls
        self._gate = gate
        self._identity = identity
        salt = bytes.fromhex(identity.salt) if identity.salt else TENANT.encode()
        self._tenant = Tenant(name=TENANT, cache_salt=salt).as_batch()

    async def answer(self, lines: Sequence[NumberedLine]) -> list[Row]:
        """Compute lines side by side."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._row(*line)) for line in lines]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _row(self, number: int, line: dict[str, object]) -> Row:
        own = self._identity
        name = f"{own.name}-{number}"

        def identity(place: int) -> BatchLine:
            created_s = own.created_unix_s
            return BatchLine(name=name, epoch=place + 1, created_unix_s=created_s, arrived_unix_ms=1000 * created_s)

        found = await answer_line(self._calls, self._gate, self._tenant, line, identity)
        return number, found.is_ok, result_line(name, str(line["custom_id"]), found)


@asynccontextmanager
async def open_whole_engine(ask: EngineAsk, endpoint: str) -> AsyncIterator[LineEngine]:
    """Start worker and gateway for lines of one endpoint."""
    options, clock = ask.engine, SystemClock()
    role = WorkerRole.PREFILL if endpoint == "/v1/embeddings" else WorkerRole.DECODE
    async with running_worker(options, role) as worker, AsyncExitStack() as stack:
        routers = OneWorker(worker.me, worker.status().identity.model_digest)
        around = Surroundings(clock=clock, registry=CollectorRegistry(), tracing=TRACING_OFF, dialer=PLAIN, stack=stack)
        parts = await open_parts(gateway_settings(options), partial(_backends, routers), around)
        book = RequestBook(parts.metrics, clock, logs_access=False)
        built = build_gateway(parts, build_edge(parts), book, lambda: "")
        watch = asyncio.create_task(parts.sessions.run())
        try:
            gate = LineGate(options.lines_at_once, clock, parts.metrics)
            yield WholeEngine(built.calls, gate, ask.identity)
        finally:
            await end_tasks([watch])


async def _backends(
    routers: Routers, _: GatewaySettings, __: ModelSet, ___: AsyncExitStack, ____: GatewayMetrics, _____: Dialer
) -> Backends:
    return Backends(routers=routers, adapters=None, authenticator=NoKeys())


def gateway_settings(options: EngineOptions) -> GatewaySettings:
    """Settings of a gateway that no client reaches; those that shape answers are the defaults of a platform."""
    places = options.lines_at_once + 1
    values = {
        "router_addresses": ["none:1"],
        "redis_url": "redis://none",
        "key_pepper": "none",
        "model": {
            "path": options.model_path,
            "name": options.model_name,
            "max_model_len": options.max_model_len,
            "max_input_tokens": options.max_input_tokens,
            "quantization": options.quantization,
        },
        "http": {"max_deadline_s": _LONG_S, "max_answer_s": _LONG_S},
        "requests": {
            "max_open": places,
            "max_open_per_tenant": places,
            "placement_timeout_s": _LONG_S,
            "embedding_timeout_s": _LONG_S,
        },
        "sessions": {"connect_timeout_s": 60.0, "silence_timeout_s": 60.0, "step_timeout_s": 60.0},
    }
    return checked(GatewaySettings, values)
