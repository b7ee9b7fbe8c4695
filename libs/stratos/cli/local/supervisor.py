"""Starts the platform's processes, keeps them alive, and ends them in order.

Start: Redis, then everything that needs no address of another, then gateways and autoscaler (see ``topology``).
While running: a process that crashed is started again after a growing pause, with the addresses it had, so that
its peers find it; a worker comes back as a new incarnation.  After more than ``MAX_CRASHES`` in a row it stays
stopped, and ``stratos status`` says so.  Where a worker crashed and a spare is there, the spare takes its
place, and what is started again becomes the next spare.  End: autoscaler, gateways (open streams get their time), what
gateways call, Redis; each bounded.

It knows processes and addresses, not what the services say to each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.cli.data.folder import RunDir, write_json_atomically
from stratos.cli.local.process import ManagedProcess, ProcessView, StartFailed
from stratos.cli.local.topology import ProcessSpec, spare_of
from stratos.common.background import BackgroundTasks
from stratos.common.clock import Clock
from stratos.common.errors import BadRequest, NotFound, Overloaded, StratosError
from stratos.observe.local_prometheus import target
from stratos.rpc.clients.channel import translate_errors
from stratos.rpc.clients.dialer import ANY_WORKER, PLAIN, Dialer
from stratos.rpc.forking.client import ForkServer

MAX_CRASHES = 6
HEALTHY_AFTER_S = 60.0
"""A process that served for this long has its crashes forgotten."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.25, 8.0
STOP_ORDER = (
    ("prometheus", "autoscaler"),
    ("gateway",),
    ("router", "prefill_worker", "decode_worker", "lora_registry"),
    ("redis",),
)
"""Groups, each of which ends together: without gateways nothing calls routers, workers and registry any more."""
KILL_MARGIN_S = 3.0
SLEEP_TIMEOUT_S = 60.0
WAKE_TIMEOUT_S = 2.0
"""A spare loads nothing as it is woken; one that does not answer within this time is ended, and the next one asked."""
WRITE_AGAIN_S = 1.0
"""Pause before files that the disk did not take are written again."""
Report = Callable[[str], None]
SpecFactory = Callable[[str], ProcessSpec]


class Supervisor:
    """All processes of one run. Belongs to one event loop, whose thread must live as long as the platform."""

    def __init__(
        self,
        run: RunDir,
        *,
        report: Report,
        clock: Clock,
        drain_timeout_s: float,
        dialer: Dialer = PLAIN,
        fork_server: ForkServer | None = None,
    ) -> None:
        self._run = run
        self._report = report
        self._clock = clock
        self._drain_timeout_s = drain_timeout_s
        self._dialer = dialer
        self._fork_server = fork_server
        self._processes: dict[str, ManagedProcess] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._drains = BackgroundTasks()
        self._is_unwritten = False
        """The files for routers and Prometheus are behind, and written as soon as the disk takes them."""
        self._write_files()

    def views(self) -> list[ProcessView]:
        """Every process, in the order they were started."""
        return [process.view() for process in self._processes.values()]

    async def launch(self, spec: ProcessSpec, *, redis_url: str = "") -> ProcessView:
        """Start a process, wait until it serves, and keep it alive from then on.

        Raises:
            StartFailed: it never served; it is gone.
        """
        if spec.name in self._processes:
            raise BadRequest(f"there is a process named {spec.name} already")
        process = ManagedProcess(
            spec,
            address_file=self._run.address_file(spec.name),
            log_path=self._run.log_path(spec.name),
            redis_url=redis_url,
            fork_server=self._fork_server,
        )
        self._processes[spec.name] = process
        began = self._clock.now()
        try:
            await process.start()
            await process.wait_serving()
        except (StartFailed, asyncio.CancelledError):
            await process.stop(0)
            self._processes.pop(spec.name, None)
            raise
        took_s = self._clock.now() - began
        self._report(f"{spec.name:<14} {process.state:<9} {took_s:5.1f} s   {process.view().address}".rstrip())
        self._keepers[spec.name] = asyncio.create_task(self._keep_alive(process), name=f"keep-{spec.name}")
        self.write_workers_file()
        return process.view()

    async def start_worker(self, role: str, make_spec: SpecFactory, limit: int) -> ProcessView:
        """Start one more worker under the first free name; ``Overloaded`` above ``limit`` of that role."""
        count = sum(p.spec.role == role and not p.is_held for p in self._processes.values())
        if count >= limit:
            raise Overloaded(f"there are {count} {role} workers already; the limit is {limit}")
        spare = await self._take_spare(make_spec(self._free_name(role)))
        if spare is not None:
            self._drains.spawn(self._launch_next_spare(role, make_spec), name=f"spare after {spare.name}")
            return spare.view()
        try:
            return await self.launch(make_spec(self._free_name(role)))
        except StartFailed as error:
            self._report(f"{error}")
            raise Overloaded(str(error)) from error

    def _free_name(self, role: str) -> str:
        return next(n for n in (f"{role}-{i}" for i in itertools.count()) if n not in self._processes)

    async def _launch_next_spare(self, role: str, make_spec: SpecFactory) -> None:
        try:
            await self.launch(spare_of(make_spec(self._free_name(role))))
        except (StartFailed, StratosError) as error:
            self._report(f"there is no spare for the next time: {error}")

    async def begin_drain(self, name: str) -> None:
        """Ask a worker to leave; it ends in the background, at the latest by force."""
        process = self._processes.get(name)
        if process is None or not process.spec.role:
            raise NotFound(f"there is no worker named {name!r}")
        if process.state == "draining":
            return
        process.state = "draining"
        self._report(f"{name:<14} draining")
        await self._ask_to_drain(process)
        self._drains.spawn(self._finish_drain(process), name=f"drain-{name}")

    async def put_to_sleep(self, name: str) -> None:
        """Let a worker that has just started give its memory to another one.

        Raises:
            StratosError: it cannot sleep.
        """
        async with self._calls_to(self._processes[name]) as stub:
            await stub.Sleep(worker_pb2.SleepRequest(), timeout=SLEEP_TIMEOUT_S)
        self._report(f"{name:<14} asleep")

    async def _take_spare(self, wanted: ProcessSpec) -> ManagedProcess | None:
        """Let a spare of the same role and model take work; ``None`` where there is none that does."""
        for spare in tuple(self._processes.values()):
            if spare.state != "standby" or _kind(spare.spec) != _kind(wanted):
                continue
            spare.state = "serving"  # from here on nothing else takes it; until it is awake it restarts as a spare
            try:
                await self._wake(spare)
            except StratosError as error:
                self._report(f"{spare.name} cannot take a place, and starts again: {error.message}")
                if spare.state == "serving":  # it may have woken all the same, beyond what was asked for
                    spare.kill()
                continue
            if spare.state != "serving":  # it died, or leaves
                continue
            spare.become(is_spare=False)
            self._report(f"{spare.name:<14} serving, as it was a spare")
            return spare
        return None

    async def _wake(self, spare: ManagedProcess) -> None:
        async with self._calls_to(spare) as stub:
            await stub.Wake(worker_pb2.WakeRequest(), timeout=WAKE_TIMEOUT_S)

    @contextlib.asynccontextmanager
    async def _calls_to(self, process: ManagedProcess) -> AsyncIterator[worker_pb2_grpc.WorkerServiceStub]:
        """Calls of a worker; raises ``StratosError`` where one fails."""
        peer = self._dialer.channel(process.address, ANY_WORKER)
        try:
            async with translate_errors(peer=process.name):
                yield worker_pb2_grpc.WorkerServiceStub(peer)
        finally:
            await peer.close()

    async def _ask_to_drain(self, process: ManagedProcess) -> None:
        timeout_ms = int(self._drain_timeout_s * 1000)
        try:
            async with self._calls_to(process) as stub:
                await stub.Drain(worker_pb2.DrainRequest(timeout_ms=timeout_ms), timeout=5)
        except StratosError as error:
            self._report(f"{process.name}: {error.message}; it is ended by a signal instead")
            process.terminate()

    async def _finish_drain(self, process: ManagedProcess) -> None:
        try:
            async with asyncio.timeout(self._drain_timeout_s + KILL_MARGIN_S):
                await process.wait_ended()
        except TimeoutError:
            self._report(f"{process.name} did not leave in time and is ended")
        await process.stop(KILL_MARGIN_S)

    async def _keep_alive(self, process: ManagedProcess) -> None:
        """Wait for the end of a process; start it again unless it was asked to leave."""
        crashes = 0
        while True:
            began = self._clock.now()
            code = await process.wait_ended()
            if process.state in ("draining", "stopped"):
                break
            crashes = 1 if self._clock.now() - began > HEALTHY_AFTER_S else crashes + 1
            process.state = "starting"
            self.write_workers_file()
            self._report(f"{process.name} ended unexpectedly (exit status {code}); its log: {process.log_path}")
            if crashes > MAX_CRASHES:
                self._report(f"{process.name} crashed {crashes} times in a row and stays stopped")
                process.state = "stopped"
                return
            is_ordinary = process.spec.role and not (process.spec.is_spare or process.spec.is_spot)
            if is_ordinary and await self._take_spare(process.spec) is not None:
                process.become(is_spare=True)
                self.write_workers_file()
            await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (crashes - 1), MAX_PAUSE_S))
            if process.state in ("draining", "stopped"):  # it was asked to leave since
                break
            await self._restart(process)
        process.state = "stopped"
        self._processes.pop(process.name, None)
        self.write_workers_file()

    async def _restart(self, process: ManagedProcess) -> None:
        process.num_restarts += 1
        process.reuse_address()
        try:
            await process.start()
            await process.wait_serving()
        except StartFailed as error:  # counts as a crash
            self._report(f"{error}")
            process.kill()
            return
        self._report(f"{process.name:<14} {process.state} again (restart {process.num_restarts})")
        self.write_workers_file()

    def write_workers_file(self) -> None:
        """Tell the router which workers there are: those that serve, and those that drain until they are gone.

        Prometheus, where there is one, gets the address of every process that has metrics.  A full disk stops nothing:
        what the files say stays until they can be written.
        """
        if self._is_unwritten:
            return
        try:
            self._write_files()
        except OSError as error:
            self._is_unwritten = True
            self._report(f"routers hear of no worker that comes or goes until it can be written: {error}")
            self._drains.spawn(self._write_later(), name="workers file")

    async def _write_later(self) -> None:
        while self._is_unwritten:
            await asyncio.sleep(WRITE_AGAIN_S)
            with contextlib.suppress(OSError):
                self._write_files()
                self._is_unwritten = False

    def _write_files(self) -> None:
        workers = [
            {"worker_id": p.name, "address": p.address, "role": p.spec.role}
            for p in self._processes.values()
            if p.spec.role and p.address and p.state in ("serving", "standby", "draining")
        ]
        write_json_atomically(self._run.workers_file, workers)
        targets = [
            target(p.name, p.spec.service, p.metrics_address) for p in self._processes.values() if p.metrics_address
        ]
        write_json_atomically(self._run.targets_file, targets)

    async def stop(self, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """End every process in order; once ``is_urgent`` all that are left are killed."""
        for task in self._keepers.values():
            task.cancel()
        self._drains.cancel()
        await asyncio.gather(*self._keepers.values(), return_exceptions=True)
        await self._drains.close()
        for group in STOP_ORDER:
            members = [p for p in self._processes.values() if p.spec.service in group]
            await self._stop_group(members, is_urgent)
        self._processes.clear()
        if self._fork_server is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_MARGIN_S):
                    await self._fork_server.settle()

    async def _stop_group(self, members: list[ManagedProcess], is_urgent: Callable[[], bool]) -> None:
        stops: list[Awaitable[None]] = [p.stop(self._drain_timeout_s + KILL_MARGIN_S) for p in members]
        pending = asyncio.gather(*stops)
        while not pending.done():
            if is_urgent():
                for process in members:
                    process.kill()
            await asyncio.wait([pending], timeout=0.1)
        await pending

    def log_path(self, name: str) -> Path:
        """Log file of a process."""
        return self._run.log_path(name)


def _kind(spec: ProcessSpec) -> tuple[str, str, str]:
    return spec.service, spec.role, spec.model_digest
