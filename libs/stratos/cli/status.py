"""``stratos status``: processes from the supervisor, workers and queues from the routers.

Every router has queues of its own and sees every worker; a worker is shown as live when all routers that answer call it
live.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from typing import Any

from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.local.process import ProcessView
from stratos.cli.local.running import list_processes
from stratos.common.errors import StratosError
from stratos.common.tls.identity import PeerRole
from stratos.core.fleet import Fleet, FleetWorker, QueueDepth
from stratos.pki.local import dial_as
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.clients.router import FLEET_TIMEOUT_S, RouterClient

_LEDGER = ("free", "cached", "allocated", "reserved", "fenced")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlatformStatus:
    """Everything the command shows."""

    facts: PlatformFacts
    processes: list[ProcessView]
    fleet: Fleet | None
    """Fleets of the routers that answer, merged; ``None`` when none of them does."""
    router_errors: dict[str, str]
    """By address: why a router does not answer."""


async def read_status(facts: PlatformFacts, router_timeout_s: float = FLEET_TIMEOUT_S) -> PlatformStatus:
    """Ask supervisor and routers; a router that is down is part of the answer, not a failure."""
    processes = await list_processes(facts)
    dialer = dial_as(facts.tls_folder, PeerRole.SUPERVISOR)
    answers = await asyncio.gather(*(_ask(address, dialer, router_timeout_s) for address in facts.router_addresses))
    fleets = [answer for answer in answers if isinstance(answer, Fleet)]
    errors = {
        address: answer
        for address, answer in zip(facts.router_addresses, answers, strict=True)
        if isinstance(answer, str)
    }
    fleet = merge_fleets(fleets) if fleets else None
    return PlatformStatus(facts=facts, processes=processes, fleet=fleet, router_errors=errors)


async def _ask(address: str, dialer: Dialer, timeout_s: float) -> Fleet | str:
    """The fleet as one router sees it, or why it does not say."""
    try:
        async with RouterClient(address, dialer=dialer) as router:
            return await router.fleet(timeout_s=timeout_s)
    except StratosError as error:
        return error.message


def merge_fleets(fleets: Iterable[Fleet]) -> Fleet:
    """All queues, and every worker once."""
    queues: list[QueueDepth] = []
    views: dict[str, list[FleetWorker]] = {}
    for fleet in fleets:
        queues += fleet.queues
        for worker in fleet.workers:
            views.setdefault(worker.ref.worker_id, []).append(worker)
    return Fleet(queues=tuple(queues), workers=tuple(_merge_worker(seen) for seen in views.values()))


def _merge_worker(views: list[FleetWorker]) -> FleetWorker:
    """Live where all call it live, with the newest status and all bookings."""
    newest = min(views, key=lambda view: view.age_s if view.status is not None else float("inf"))
    return dataclasses.replace(
        newest,
        is_live=all(view.is_live for view in views),
        out_reason=next((view.out_reason for view in views if view.out_reason), ""),
        num_booked=sum(view.num_booked for view in views),
        is_clear=any(view.is_clear for view in views),
    )


def status_json(status: PlatformStatus) -> dict[str, Any]:
    """The status as data, without secrets."""
    fleet = status.fleet or Fleet()
    return {
        "run_id": status.facts.run_id,
        "base_url": status.facts.base_url,
        "processes": [dataclasses.asdict(process) for process in status.processes],
        "router_errors": status.router_errors,
        "queues": [dataclasses.asdict(queue) for queue in fleet.queues],
        "workers": [_worker_json(worker) for worker in fleet.workers],
    }


def _worker_json(worker: FleetWorker) -> dict[str, Any]:
    content: dict[str, Any] = {
        "worker_id": worker.ref.worker_id,
        "role": worker.ref.role.value,
        "incarnation": worker.ref.incarnation,
        "is_live": worker.is_live,
        "out_reason": worker.out_reason,
        "num_booked": worker.num_booked,
        "is_clear": worker.is_clear,
    }
    if (status := worker.status) is not None:
        content |= {
            "engine_step": status.engine.step,
            "num_running": status.engine.num_running,
            "num_waiting": status.engine.num_waiting,
            "num_handoffs": status.num_handoffs,
            "is_draining": status.is_draining,
            "is_spot": status.is_spot,
            "not_ready_reason": status.not_ready_reason,
            "blocks": dataclasses.asdict(status.engine.blocks),
            "staging": dataclasses.asdict(status.staging),
        }
    return content


def status_text(status: PlatformStatus) -> str:
    """Two tables and the queues."""
    lines = [f"{status.facts.base_url}   run {status.facts.run_id}", "", *_process_table(status.processes), ""]
    lines += [f"the router at {address} does not answer: {why}" for address, why in status.router_errors.items()]
    if status.fleet is None:
        return "\n".join(lines)
    queues = [_queue_line(queue) for queue in status.fleet.queues] or ["queue: empty"]
    return "\n".join([*lines, *_worker_table(status.fleet), "", *queues])


def _queue_line(queue: QueueDepth) -> str:
    return (
        f"queue: {queue.work}, class {queue.priority_class} of model {queue.model_digest[:12]}: "
        f"{queue.num_requests} requests, {queue.num_tokens} tokens, oldest {queue.oldest_s:.1f} s"
    )


def _process_table(processes: list[ProcessView]) -> list[str]:
    header = ("process", "state", "pid", "address", "metrics", "restarts")
    rows = [
        (p.name, p.state, str(p.pid or "-"), p.address or "-", p.metrics_address or "-", str(p.num_restarts))
        for p in processes
    ]
    return _aligned([header, *rows])


def _worker_table(fleet: Fleet) -> list[str]:
    header = ("worker", "role", "state", "running", "waiting", "booked", "step", "KV blocks", *_LEDGER)
    return _aligned([header, *(_worker_row(worker) for worker in fleet.workers)])


def _worker_row(worker: FleetWorker) -> tuple[str, ...]:
    state = "live" if worker.is_live else worker.out_reason or "out"
    head = (worker.ref.worker_id, worker.ref.role.value, state)
    if (status := worker.status) is None:
        return (*head, *("-" for _ in range(5 + len(_LEDGER))))
    engine, ledger = status.engine, dataclasses.asdict(status.engine.blocks)
    counts = (engine.num_running, engine.num_waiting, worker.num_booked, engine.step, ledger["total"])
    return (*head, *map(str, counts), *(str(ledger[name]) for name in _LEDGER))


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
