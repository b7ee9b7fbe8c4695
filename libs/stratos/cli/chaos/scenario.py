"""Streams and faults at once, compared with streams that nothing disturbed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from stratos.cli.chaos.faults.contract import NOTHING, NoEffect
from stratos.cli.chaos.faults.fault import LOSING, MOVING, Fault
from stratos.cli.chaos.report import ChaosRow
from stratos.cli.chaos.streams import (
    TIMEOUT_S,
    StreamResult,
    StreamRun,
    differences,
    lost_records,
    refused_features,
)
from stratos.cli.data.folder import DataDir
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.drain.worker import DrainOutcome, drain_worker
from stratos.cli.keyring import create_key, remove_tenant
from stratos.cli.local.running import list_processes
from stratos.cli.status import read_status
from stratos.common.errors import BadRequest, DependencyDown, NotFound, StratosError

RETURN_TIMEOUT_S = 240.0
KEY_TIMEOUT_S = 60.0
METRICS_TIMEOUT_S = 30.0
POLL_S = 0.2
NUM_ASKS = 12
"""Connections by which every gateway is met."""
Streams = Mapping[str, StreamResult]


@dataclass(slots=True)
class ChaosTarget:
    """A running platform that may be broken."""

    facts: PlatformFacts
    data_dir: Path
    num_workers: int = field(default=0, init=False)
    """Live ones before the first fault."""
    tenants: list[str] = field(default_factory=list, init=False)
    """Made here."""
    without: tuple[str, ...] = field(default=(), init=False)
    """Features of streams that the model refuses."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names that streams ask for."""
        return (self.facts.model, *self.facts.adapters)

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
        text = (await self._ask(name, "metrics")).text
        if f"\n# TYPE {metric} " not in f"\n{text}":
            raise NotFound(f"{name} has no metric {metric}")
        lines = [line.rpartition(" ") for line in text.splitlines() if re.match(rf"{metric}[ {{]", line)]
        labels = [f'reason="{reason}"' for reason in reasons]
        return sum(float(value) for series, _, value in lines if not labels or any(one in series for one in labels))

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
        await _within(self.is_whole, RETURN_TIMEOUT_S, "not every process has come back")

    async def new_key(self) -> str:
        """Key of a new tenant, whose prompts no worker has cached; all gateways know it."""
        tenant = f"chaos-{time.monotonic_ns()}"
        self.tenants.append(tenant)
        key = await create_key(self.facts, self.data_dir, tenant=tenant, name="chaos", plan="local")
        headers = {"authorization": f"Bearer {key}"}

        async def is_known() -> bool:
            limits = httpx.Limits(max_keepalive_connections=0)
            async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=KEY_TIMEOUT_S) as client:
                url = f"{self.facts.base_url}/models"
                answers = await asyncio.gather(*(client.get(url, headers=headers) for _ in range(NUM_ASKS)))
            return all(answer.status_code == httpx.codes.OK for answer in answers)

        await _within(is_known, KEY_TIMEOUT_S, "a new key is not known at every gateway")
        return key

    async def remove_tenants(self) -> None:
        """Delete the tenants that were made here, and their keys with them."""
        while self.tenants:
            with suppress(NotFound):
                await remove_tenant(self.facts, tenant=self.tenants[-1])
            self.tenants.pop()

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

    def moved(self, name: str) -> set[str]:
        """Streams of a run that a gateway resumed at another worker, as its log says."""
        folder = DataDir(self.data_dir).run_paths(self.facts.run_id).logs_path
        lines = [line for log in folder.glob("gateway-*.log") for line in log.read_text().splitlines()]
        words = (word.strip(",:;()") for line in lines if "goes on elsewhere" in line for word in line.split())
        return {word for word in words if word.startswith(f"{name}-")}


async def undisturbed_streams(target: ChaosTarget) -> Streams:
    """The streams as they must come out.

    Raises:
        DependencyDown: one of them fails without a fault.
    """
    url, key = target.facts.base_url, await target.new_key()
    target.without = await refused_features(url, key, target.facts.model)
    run = StreamRun(url, key, "undisturbed", target.models, without=target.without)

    async def nothing(_: asyncio.Event) -> None:
        return

    await run.run(nothing)
    if errors := [f"{result.name}: {result.error}" for result in run.results.values() if result.error]:
        raise DependencyDown(f"streams fail without any fault: {errors[0]}")
    return run.results


async def run_scenario(target: ChaosTarget, faults: Sequence[Fault], undisturbed: Streams) -> ChaosRow:
    """Faults at once under streams, and the platform's return from them; without any, the streams alone."""
    gateway_faults = [fault.kind for fault in faults if fault.target.startswith("gateway")]
    key, name, are_recorded = await target.new_key(), f"s{time.monotonic_ns()}", bool(gateway_faults)
    run = StreamRun(target.facts.base_url, key, name, target.models, are_recorded=are_recorded, without=target.without)
    proofs = [f"without {', '.join(target.without)}, which the model refuses"] if target.without else []
    problems: list[str] = []
    open_at_fault: list[int] = []
    was_felt: list[bool] = []
    had_effect: list[bool] = []

    losing = {fault.target for fault in faults if fault.target.startswith("decode") and fault.kind in MOVING}
    workers = losing or {fault.target for fault in faults if fault.target.startswith(("decode", "prefill"))}

    async def strike(in_effect: asyncio.Event) -> None:
        was_felt.append(not workers or await target.is_busy(workers))
        open_at_fault.append(run.num_open())
        strikes = (fault.strike(target, in_effect) for fault in faults)
        for fault, proof in zip(faults, await asyncio.gather(*strikes, return_exceptions=True), strict=True):
            had_effect.append(not isinstance(proof, BaseException))
            if isinstance(proof, NoEffect | StratosError):
                problems.append(f"{fault} had no effect: {proof}")
            elif isinstance(proof, Exception):
                problems.append(f"{fault} failed: {proof!r}")
            elif isinstance(proof, BaseException):
                raise proof
            else:
                proofs.append(str(proof))

    try:
        await run.run(strike)
    except TimeoutError:
        problems.append(f"not every stream began, and ended, in {TIMEOUT_S:.0f} s")
    problems += [text for name, got in run.results.items() for text in differences(undisturbed[name], got)]
    num_moved = len(target.moved(run.name))
    if losing and num_moved:  # work that came between the look and the fault
        was_felt = [True]
    if gateway_faults:
        num_returns = sum(result.num_returns for result in run.results.values())
        num_resumed = sum(result.num_resumed for result in run.results.values())
        proofs.append(f"{num_returns} times a client came back, {num_resumed} times to the rest of its record")
        was_felt.append(num_resumed > 0 or not any(kind in LOSING for kind in gateway_faults))
        if not any(fault.target == "redis" for fault in faults):
            problems += lost_records(run.results.values())
    if not sum(open_at_fault):
        problems.append("no stream was open when the fault came")
    if losing and not num_moved and all(was_felt):
        problems.append("no stream had to move, though a worker that was disturbed had work")
        had_effect.append(False)
    try:
        await target.wait_whole()
    except StratosError as error:
        problems.append(error.message)
    different = {text.split(":")[0] for text in problems if ": other " in text}
    return ChaosRow(
        scenario=" and ".join(map(str, faults)) or "control: no fault",
        streams=len(run.results),
        different=len(different),
        failed=sum(bool(result.error) for result in run.results.values()),
        moved=num_moved,
        longest_gap_s=round(max(result.longest_gap_s for result in run.results.values()), 2),
        effect="; ".join([f"{sum(open_at_fault)} streams open", *proofs]),
        is_felt=all(was_felt),
        had_effect=all(had_effect),
        problems=tuple(problems),
    )


async def run_control(target: ChaosTarget, fault: Fault) -> ChaosRow:
    """The same fault aimed at no process: its check must say that it had no effect."""
    fault = Fault(fault.kind, NOTHING)
    try:
        proof = await fault.strike(target, asyncio.Event())
    except NoEffect as error:
        return ChaosRow(scenario=f"control: {fault}", streams=0, effect=str(error))
    problem = f"a fault without an effect passed its check: {proof}"
    return ChaosRow(scenario=f"control: {fault}", streams=0, problems=(problem,))


async def _within(is_so: Callable[[], Awaitable[bool]], seconds: float, otherwise: str) -> None:
    try:
        async with asyncio.timeout(seconds):
            while True:
                if await is_so():
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise DependencyDown(f"{otherwise} within {seconds:.0f} s") from None
