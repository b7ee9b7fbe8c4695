"""``stratos status``: processes from the supervisor, workers and queues from the router."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table

from stratos.cli.platform_facts import PlatformFacts
from stratos.cli.process import ProcessView
from stratos.cli.running import list_processes
from stratos.common.errors import StratosError
from stratos.core.fleet import Fleet, FleetWorker
from stratos.rpc.router_client import RouterClient


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlatformStatus:
    """Everything the command shows; ``fleet`` is ``None`` when the router does not answer."""

    facts: PlatformFacts
    processes: list[ProcessView]
    fleet: Fleet | None
    fleet_error: str = ""


async def read_status(facts: PlatformFacts) -> PlatformStatus:
    """Ask supervisor and router; a router that is down is part of the answer, not a failure."""
    processes = await list_processes(facts)
    try:
        async with RouterClient(facts.router_address) as router:
            return PlatformStatus(facts=facts, processes=processes, fleet=await router.fleet())
    except StratosError as error:
        return PlatformStatus(facts=facts, processes=processes, fleet=None, fleet_error=error.message)


def status_json(status: PlatformStatus) -> dict[str, Any]:
    """The status as data, without secrets."""
    fleet = status.fleet or Fleet()
    return {
        "run_id": status.facts.run_id,
        "base_url": status.facts.base_url,
        "processes": [dataclasses.asdict(process) for process in status.processes],
        "router_error": status.fleet_error,
        "queues": [dataclasses.asdict(queue) for queue in fleet.queues],
        "workers": [_worker_json(worker) for worker in fleet.workers],
    }


def _worker_json(worker: FleetWorker) -> dict[str, Any]:
    content: dict[str, Any] = {
        "worker_id": worker.worker.worker_id,
        "role": worker.worker.role.value,
        "incarnation": worker.worker.incarnation,
        "is_live": worker.is_live,
        "out_reason": worker.out_reason,
        "num_booked": worker.num_booked,
    }
    if (status := worker.status) is not None:
        content |= {
            "engine_step": status.engine_step,
            "num_running": status.num_running,
            "num_waiting": status.num_waiting,
            "num_handoffs": status.num_handoffs,
            "is_draining": status.is_draining,
            "blocks": dataclasses.asdict(status.blocks),
            "staging": dataclasses.asdict(status.staging),
        }
    return content


def print_status(status: PlatformStatus, console: Console) -> None:
    """Two tables and the queues."""
    console.print(f"{status.facts.base_url}   run {status.facts.run_id}", highlight=False)
    console.print(_process_table(status.processes))
    if status.fleet is None:
        console.print(f"the router does not answer: {status.fleet_error}", style="red")
        return
    console.print(_worker_table(status.fleet))
    if not status.fleet.queues:
        console.print("queue: empty")
    for queue in status.fleet.queues:
        console.print(
            f"queue: class {queue.priority_class} of model {queue.model_digest[:12]}: {queue.num_requests} requests, "
            f"{queue.num_tokens} tokens, oldest {queue.oldest_s:.1f} s"
        )


def _process_table(processes: list[ProcessView]) -> Table:
    table = Table("process", "state", "pid", "address", "metrics", "restarts", box=None, pad_edge=False)
    for process in processes:
        style = "" if process.state == "serving" else "red" if process.state == "stopped" else "yellow"
        table.add_row(
            process.name,
            process.state,
            str(process.pid or "-"),
            process.address,
            process.metrics_address,
            str(process.num_restarts),
            style=style,
        )
    return table


def _worker_table(fleet: Fleet) -> Table:
    columns = ("worker", "role", "live", "running", "waiting", "booked", "step")
    blocks = ("free", "cached", "allocated", "reserved", "fenced", "total")
    table = Table(
        *columns, *(f"{name} blocks" if name == "free" else name for name in blocks), box=None, pad_edge=False
    )
    for worker in fleet.workers:
        live = "yes" if worker.is_live else worker.out_reason or "no"
        if worker.status is None:
            table.add_row(worker.worker.worker_id, worker.worker.role.value, live)
            continue
        s, ledger = worker.status, worker.status.blocks
        counts = (s.num_running, s.num_waiting, worker.num_booked, s.engine_step)
        sizes = (ledger.free, ledger.cached, ledger.allocated, ledger.reserved, ledger.fenced, ledger.total)
        table.add_row(worker.worker.worker_id, worker.worker.role.value, live, *map(str, (*counts, *sizes)))
    return table
