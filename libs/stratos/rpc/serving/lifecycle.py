"""The life of a service process, the same for all services.

    logging, tracing, probes -> health NOT_SERVING -> ``open`` -> the gRPC server listens -> root tasks start
    -> ``warm_up`` -> SERVING, address file -> (SIGTERM, SIGINT, or a root task ends) -> NOT_SERVING
    -> ``begin_leave`` -> endpoint lag -> ``drain`` -> the server stops -> root tasks are cancelled -> ``close``
    -> telemetry flushed

Exit code 0 after a signal, 1 after a fault or when the process cannot start.  A second signal skips lag and
drain, a third one kills.  After a fault there is no lag and only a short drain: peers recover the streams.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from stratos.common.background import end_tasks
from stratos.common.clock import SystemClock
from stratos.common.errors import StratosError
from stratos.rpc.binding import StartError, explain_bind_failure, join_address, split_address
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.log_thread import num_lost_lines
from stratos.rpc.metrics import LoopMetrics, register_process_metrics
from stratos.rpc.serving.address_file import ServiceAddress, remove_address_file, write_address_file
from stratos.rpc.serving.probes import ProbeServer, Readiness
from stratos.rpc.serving.server import GrpcServer
from stratos.rpc.serving.service import Service
from stratos.rpc.serving.tls import open_tls, register_expiry
from stratos.rpc.settings import ServiceSettings, describe_settings, env_name_of
from stratos.rpc.tracing import open_tracing

_log = logging.getLogger(__name__)
_BEAT_S = 0.25
_CLOSE_TIMEOUT_S = 10.0


class _StopRequested(Exception):
    """Someone asked the process to stop."""


class _RootTaskEnded(Exception):
    """A task that must live as long as the process ended."""


class Lifecycle:
    """One run of one service.

    Args:
        service: what runs.
        settings: of the service.
        stop: set from outside to stop with drain.
        force: set from outside to stop without.
        before_serving: called once everything is there.
    """

    def __init__(
        self,
        service: Service,
        settings: ServiceSettings,
        stop: asyncio.Event,
        force: asyncio.Event,
        before_serving: Callable[[], None] = lambda: None,
    ) -> None:
        self._service = service
        self._settings = settings
        self._stop = stop
        service.request_stop = stop.set
        self._force = force
        self._before_serving = before_serving
        self._clock = SystemClock()
        self._readiness = Readiness(self._clock, settings.stall_timeout_s, service.not_ready_reason)
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._metrics_port = 0

    async def run(self) -> int:
        """From start to end; returns the exit code."""
        try:
            async with AsyncExitStack() as stack:
                await self._run(stack)
        except _StopRequested:
            _log.info("%s stopped", self._service.name)
            return 0
        except (StartError, StratosError, _RootTaskEnded) as error:
            _log.error("%s", error, exc_info=error.__cause__)
        except Exception:
            _log.exception("%s failed", self._service.name)
        return 1

    async def _run(self, stack: AsyncExitStack) -> None:
        service, settings = self._service, self._settings
        _log.info("settings: %s", " ".join(f"{k}={v}" for k, v in describe_settings(settings).items()))
        service.tracing = open_tracing(settings.otlp_endpoint, service.name)
        stack.push_async_callback(asyncio.to_thread, service.tracing.flush)
        stack.callback(self._open_probes().close)
        service.dialer = Dialer(open_tls(settings))
        if service.dialer.tls is not None:
            register_expiry(service.metrics, service.dialer.tls)
        server = GrpcServer(service)
        stack.push_async_callback(self._close)
        self._spawn("heartbeat", self._beat(server))
        await self._race(service.open())
        await self._listen(server)
        try:
            for name, work in service.tasks().items():
                self._spawn(name, work)
            await self._race(service.warm_up())
            self._before_serving()
            await self._serve(server, stack)
        except _StopRequested:
            await self._leave(server, settings.endpoint_lag_s, settings.drain_timeout_s)
            raise
        except BaseException:
            await self._leave(server, 0.0, min(settings.fault_drain_timeout_s, settings.drain_timeout_s))
            raise

    def _open_probes(self) -> ProbeServer:
        register_process_metrics(self._service.metrics)
        listen = self._settings.metrics_listen
        try:
            views = self._settings.metric_views
            probes = ProbeServer(listen, self._readiness, self._service.metrics, views)
        except OSError as error:
            raise explain_bind_failure(listen, env_name_of(type(self._settings), ("metrics_listen",)), error) from None
        self._metrics_port = probes.port
        return probes

    async def _listen(self, server: GrpcServer) -> None:
        settings = self._settings
        port = await server.listen(settings.listen, env_name_of(type(settings), ("listen",)))
        self._service.address = join_address(settings.advertise_host or split_address(settings.listen)[0], port)
        metrics_host = settings.advertise_host or split_address(settings.metrics_listen)[0]
        self._service.metrics_address = join_address(metrics_host, self._metrics_port)

    async def _serve(self, server: GrpcServer, stack: AsyncExitStack) -> None:
        service = self._service
        self._readiness.phase = ""
        self._readiness.has_started = True
        await server.set_serving(not self._readiness.reason())
        if self._settings.address_file:
            path = Path(self._settings.address_file)
            address = ServiceAddress(address=service.address, metrics_address=service.metrics_address, pid=os.getpid())
            stack.callback(remove_address_file, path)
            write_address_file(path, address)
        _log.info("%s serves on %s, metrics on %s", service.name, service.address, service.metrics_address)
        await self._race(asyncio.Event().wait())

    async def _leave(self, server: GrpcServer, lag_s: float, drain_timeout_s: float) -> None:
        was_serving = not self._readiness.phase
        self._readiness.phase = "draining"
        await server.set_serving(False)
        if was_serving:
            self._service.begin_leave()
            await self._unless_forced(asyncio.sleep(lag_s), lag_s + 1.0, "endpoint lag")
            await self._unless_forced(self._drain(server), drain_timeout_s, "drain")
        await server.stop(0.0 if self._force.is_set() else self._settings.stop_grace_s)

    async def _drain(self, server: GrpcServer) -> None:
        await self._service.drain()
        await server.wait_unary_idle()

    async def _close(self) -> None:
        await end_tasks(self._tasks.values())
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await self._service.close()

    async def _beat(self, server: GrpcServer) -> None:
        delays = LoopMetrics(self._service.metrics)
        while True:
            self._readiness.beat()
            await server.set_serving(not self._readiness.reason())
            asked_s = self._clock.now()
            await asyncio.sleep(_BEAT_S)
            delays.observe(self._clock.now() - asked_s - _BEAT_S)
            delays.show_lost_lines(num_lost_lines())

    def _spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        self._tasks[name] = asyncio.create_task(work, name=name)

    async def _race(self, work: Coroutine[Any, Any, Any]) -> None:
        """Wait for ``work``; a stop or the end of a root task comes first as an exception."""
        main, stop = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({main, stop, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
            for name, task in self._tasks.items():
                if task.done():
                    raise _RootTaskEnded(f"root task {name!r} ended") from _outcome(task)
            if not main.done():
                raise _StopRequested
            main.result()
        finally:
            await end_tasks((main, stop))

    async def _unless_forced(self, work: Coroutine[Any, Any, Any], timeout_s: float, what: str) -> None:
        main, force = asyncio.create_task(work), asyncio.create_task(self._force.wait())
        done, _ = await asyncio.wait({main, force}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            _log.warning("%s took longer than %.1f s and was cut off", what, timeout_s)
        await end_tasks((main, force))
        if failure := _outcome(main):
            _log.error("%s failed", what, exc_info=failure)


def _outcome(task: asyncio.Task[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
