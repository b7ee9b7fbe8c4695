"""One child process: start it, see that it serves, keep its log, stop it in time.

States: starting -> serving -> draining -> stopped, of a spare starting -> standby -> serving; a crash leads back to
starting (the supervisor decides).  A spare that starts is shown as loading: no pool is to count on it.
Children get a session of their own, so that a Ctrl-C in the terminal reaches the supervisor alone and the end is
in order; they end with the supervisor through the kernel's parent-death signal.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stratos.cli.local.embedded_redis import answers
from stratos.cli.local.log_tail import log_tail, logged_reason
from stratos.cli.local.topology import ProcessSpec, spare_of
from stratos.common.errors import DependencyDown, StratosError
from stratos.core.fleet import Fleet
from stratos.observe.local_prometheus import is_ready
from stratos.rpc.forking.client import ForkedProcess, ForkServer, ForkServerGone
from stratos.rpc.serving.address_file import read_address_file
from stratos.rpc.serving.parent import PARENT_PID_ENV

State = Literal["starting", "loading", "serving", "standby", "draining", "stopped"]
POLL_S = 0.03


class StartFailed(Exception):
    """A process does not serve; the text says why, ``log_tail`` is the end of what it wrote."""

    def __init__(self, name: str, reason: str, log_tail: str, log_path: Path) -> None:
        super().__init__(f"{name} could not start: {reason}")
        self.name = name
        self.log_tail = log_tail
        self.log_path = log_path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """State of a process, for others to read."""

    name: str
    pid: int
    address: str
    metrics_address: str
    state: State
    role: str
    num_restarts: int
    model_digest: str = ""
    """Digest of the model that a worker was started with."""


class ManagedProcess:
    """A child process and its state. Not thread-safe: it belongs to the supervisor's event loop."""

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        address_file: Path,
        log_path: Path,
        redis_url: str = "",
        fork_server: ForkServer | None = None,
    ) -> None:
        self.spec = spec
        self.state: State = "starting"
        self.address = ""
        self.metrics_address = ""
        self.num_restarts = 0
        self._address_file = address_file
        self._redis_url = redis_url
        self.log_path = log_path
        self._fork_server = fork_server
        self._process: asyncio.subprocess.Process | ForkedProcess | None = None

    @property
    def name(self) -> str:
        """Name of the process, e.g. "decode-0"."""
        return self.spec.name

    @property
    def pid(self) -> int:
        """Operating system process id; 0 while there is none."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    @property
    def is_held(self) -> bool:
        """A spot worker, or a spare that is no worker of its pool, nor on its way to be one."""
        return self.spec.is_spot or (self.spec.is_spare and self.state != "serving")

    def view(self) -> ProcessView:
        return ProcessView(
            name=self.name,
            pid=self.pid,
            address=self.spec.public_address or self.address,
            metrics_address=self.metrics_address,
            state="loading" if self.is_held and self.state == "starting" else self.state,
            role=self.spec.role,
            num_restarts=self.num_restarts,
            model_digest=self.spec.model_digest,
        )

    async def start(self) -> None:
        """Start the process; it does not serve yet.

        Raises:
            StartFailed: the system gives no process, for want of memory for example.
        """
        self.state = "starting"
        try:
            self._address_file.unlink(missing_ok=True)
            with self.log_path.open("ab") as log:
                self._process = await self._fork(log.fileno()) or await self._execute(log.fileno())
        except OSError as error:
            raise StartFailed(self.name, f"the system refuses: {error}", "", self.log_path) from error

    async def _fork(self, log: int) -> ForkedProcess | None:
        spec = self.spec
        if self._fork_server is None or not spec.module:
            return None
        try:
            return await self._fork_server.fork(
                spec.module, name=spec.name, env=spec.env, log=log, listeners=spec.listeners
            )
        except ForkServerGone:
            return None

    async def _execute(self, log: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.spec.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **self.spec.env, PARENT_PID_ENV: str(os.getpid()), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            pass_fds=self.spec.listeners,
        )

    async def wait_serving(self) -> None:
        """Wait until the process serves.

        Raises:
            StartFailed: it ended, or did not serve in time.
        """
        assert self._process is not None, "start() comes first"
        try:
            async with asyncio.timeout(self.spec.start_timeout_s):
                while not await self._look():
                    if self._process.returncode is not None:
                        raise self._failure(f"it ended with {_describe_exit(self._process.returncode)}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise self._failure(f"it did not serve within {self.spec.start_timeout_s:.0f} s") from None
        if self.state == "starting":
            self.state = "standby" if self.spec.is_spare else "serving"

    async def _look(self) -> bool:
        if self.spec.readiness == "redis":
            return await answers(self._redis_url)
        if self.spec.readiness == "prometheus":
            return await is_ready(self.spec.public_address)
        found = read_address_file(self._address_file)
        if found is None or found.pid != self.pid:
            return False
        self.address, self.metrics_address = found.address, found.metrics_address
        return True

    async def wait_ended(self) -> int:
        """Wait for the end of the process; returns its exit code (negative: the signal)."""
        assert self._process is not None, "start() comes first"
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after ``grace_s``; returns when the process is gone."""
        if self._process is None:
            self.state = "stopped"
            return
        if self.state != "stopped":
            self.state = "draining"
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()
        self.state = "stopped"

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self._signal(signal.SIGTERM)

    def reuse_address(self) -> None:
        """Let the next start listen where the last one did, so that peers that have the address find it."""
        if not self.address or not self.spec.listen_env or self.spec.role:
            return
        env = {**self.spec.env, self.spec.listen_env: self.address}
        self.spec = dataclasses.replace(self.spec, env=env)

    def become(self, *, is_spare: bool) -> None:
        """Be a spare, or none, from the next start on."""
        self.spec = spare_of(self.spec, is_spare=is_spare)

    def kill(self) -> None:
        """SIGKILL, without waiting."""
        self._signal(signal.SIGKILL)

    def _signal(self, signum: int) -> None:
        if self._process is not None and self._process.returncode is None:
            try:
                self._process.send_signal(signum)
            except ProcessLookupError:
                return

    def _failure(self, reason: str) -> StartFailed:
        logged = logged_reason(self.log_path)
        return StartFailed(self.name, logged or reason, log_tail(self.log_path), self.log_path)


def _describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


async def wait_for_fleet(ask: Callable[[], Awaitable[Fleet]], wanted: int, timeout_s: float) -> None:
    """Return once so many workers are well; calls that fail on the way are made again.

    Args:
        ask: a router.
        wanted: number of workers.
        timeout_s: of the whole wait.

    Raises:
        DependencyDown: they were not in time; says what the router told last.
    """
    said = "it has not answered"
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    num_well = sum(worker.is_well for worker in (await ask()).workers)
                except StratosError as error:  # a busy machine answers late
                    said = error.message
                else:
                    if num_well >= wanted:
                        return
                    said = f"{num_well} of {wanted} are"
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        text = f"the workers run, but a router does not call all of them live within {timeout_s:g} s: {said}"
        raise DependencyDown(text) from None
