"""A platform of ``stratos up``, as ``stratos chaos`` breaks it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from stratos.cli.chaos.agreement import check_may_take
from stratos.cli.chaos.faults.contract import Proof
from stratos.cli.chaos.faults.fault import LOCAL, Fault, Repertoire
from stratos.cli.chaos.streams import NUM_TOKENS
from stratos.cli.chaos.target import (
    RETURN_TIMEOUT_S,
    Exposition,
    moved_in,
    new_tenant,
    remove_each,
    wait_known,
    within,
)
from stratos.cli.data.folder import DataDir
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.drain.worker import DrainOutcome, drain_worker
from stratos.cli.keyring import create_key, remove_tenant
from stratos.cli.local.running import list_processes
from stratos.cli.status import read_status
from stratos.common.errors import BadRequest, DependencyDown, NotFound, StratosError

METRICS_TIMEOUT_S = 30.0


@dataclass(slots=True)
class ChaosTarget:
    """A running platform that may be broken."""

    facts: PlatformFacts
    data_dir: Path
    is_agreed: bool = False
    """Whether an object store outside of the data directory may be taken away."""
    num_workers: int = field(default=0, init=False)
    """Live ones before the first fault."""
    tenants: list[str] = field(default_factory=list, init=False)
    """Made here."""
    without: tuple[str, ...] = field(default=(), init=False)
    """Features of streams that the model refuses."""
    repertoire: Repertoire = field(default=LOCAL, init=False)
    num_tokens: int = field(default=NUM_TOKENS, init=False)

    @property
    def base_url(self) -> str:
        """Address of the API, with /v1."""
        return self.facts.base_url

    @property
    def models(self) -> tuple[str, ...]:
        """Names that streams ask for."""
        return (self.facts.model, *self.facts.adapters)

    async def about(self) -> str:
        """The run."""
        return f"run {self.facts.run_id} on this machine"

    async def names(self) -> list[str]:
        """Processes."""
        return list(await self.pids())

    async def prepare(self, faults: Collection[Fault]) -> None:
        """Refuse what may not be broken.

        Raises:
            BadRequest: others may need the object store that is going to be away, or it is a service.
        """
        if any(fault.kind == "gone" for fault in faults):
            check_may_take(self.store_path(), self.data_dir, is_agreed=self.is_agreed)

    async def pids(self) -> dict[str, int]:
        """Processes by name."""
        return {process.name: process.pid for process in await list_processes(self.facts)}

    async def pid_of(self, name: str) -> int:
        """The process of a name.

        Raises:
            NotFound: none has it.
        """
        pids = await self.pids()
        if name not in pids:
            raise NotFound(f"there is no process named {name!r}; running: {', '.join(sorted(pids))}")
        return pids[name]

    async def metric(self, name: str, metric: str, reasons: Collection[str] = ()) -> float:
        """Sum over the series of a metric that a process shows, of ``reasons`` alone where there are any.

        Raises:
            NotFound: there is no such process, or it has no such metric.
            DependencyDown: it does not answer.
        """
        shown = Exposition(name, (await self._ask(name, "metrics")).text)
        labels = [f'reason="{reason}"' for reason in reasons]
        return shown.total(metric, lambda series: not labels or any(label in series for label in labels))

    async def clock_ahead_s(self, name: str) -> float:
        """By the time that its answer bears, which is whole seconds. Raises as ``metric``."""
        answer = await self._ask(name, "livez")
        return parsedate_to_datetime(answer.headers["date"]).timestamp() - time.time()

    async def metrics_address(self, name: str) -> str:
        """Where a process answers probes. Raises ``NotFound``: there is no such process, or it does not."""
        addresses = {process.name: process.metrics_address for process in await list_processes(self.facts)}
        if not addresses.get(name):
            raise NotFound(f"there is no process named {name!r} that has metrics")
        return addresses[name]

    async def _ask(self, name: str, path: str) -> httpx.Response:
        url = f"http://{await self.metrics_address(name)}/{path}"
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=METRICS_TIMEOUT_S) as client:
                answer = await client.get(url)
        except httpx.HTTPError as error:
            raise DependencyDown(f"{name} does not answer at {url}: {error!r}") from error
        if answer.status_code != httpx.codes.OK:
            raise DependencyDown(f"{name} answers {url} with status {answer.status_code}")
        return answer

    def kv_path(self, name: str) -> Path:
        """Folder of a worker's KV on disk."""
        return DataDir(self.data_dir).kv_path / name

    async def drain(self, name: str) -> DrainOutcome:
        """Let a worker leave, and wait for its end.

        Raises:
            StratosError: it cannot.
        """
        return await drain_worker(self.facts, name)

    def store_path(self) -> Path:
        """Folder of the object store.

        Raises:
            BadRequest: it is a service, which is not ours to take away.
        """
        if not self.facts.object_store_url.startswith("file://"):
            raise BadRequest(f"{self.facts.object_store_url} is no folder of this machine: take it away yourself")
        return Path(self.facts.object_store_url.removeprefix("file://"))

    async def is_whole(self) -> bool:
        """Every process serves, and every router sees as many workers as there were."""
        try:
            status = await read_status(self.facts)
        except StratosError:
            return False
        workers = [worker.is_live for worker in status.fleet.workers] if status.fleet else []
        self.num_workers = self.num_workers or sum(workers)
        is_serving = all(process.state == "serving" for process in status.processes)
        return is_serving and not status.router_errors and all(workers) and len(workers) == self.num_workers

    async def wait_whole(self) -> None:
        """Wait for the return of every process. Raises ``DependencyDown`` where one stays away."""
        await within(self.is_whole, RETURN_TIMEOUT_S, "not every process has come back")

    async def new_key(self) -> str:
        """Key of a new tenant, whose prompts no worker has cached; all gateways know it."""
        tenant = new_tenant()
        self.tenants.append(tenant)
        key = await create_key(self.facts, self.data_dir, tenant=tenant, name="chaos", plan="local")
        await wait_known(self.base_url, key)
        return key

    async def remove_tenants(self) -> None:
        """Delete the tenants that were made here, and their keys with them."""
        await remove_each(self.tenants, lambda tenant: remove_tenant(self.facts, tenant=tenant))

    async def is_busy(self, names: Collection[str]) -> bool:
        """Whether one of these workers has requests or hand-offs, as routers know it."""
        try:
            fleet = (await read_status(self.facts)).fleet
        except StratosError:  # no router says
            return False
        return any(
            worker.num_booked or (worker.status and (worker.status.num_seqs or worker.status.num_handoffs))
            for worker in (fleet.workers if fleet else ())
            if worker.ref.worker_id in names
        )

    async def moved(self, name: str) -> set[str]:
        """Streams of a run that a gateway resumed at another worker, as its log says."""
        folder = DataDir(self.data_dir).run_paths(self.facts.run_id).logs_path
        return moved_in((log.read_text() for log in folder.glob("gateway-*.log")), name)

    async def strike(self, fault: Fault, in_effect: asyncio.Event) -> Proof:
        """Inject, and wait for the end. Raises ``NoEffect``."""
        return await fault.strike(self, in_effect)
