"""A router that obeys a test, for a gateway in front of scriptable workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stratos.common.errors import StratosError
from stratos.core.cache_changes import CacheLayout
from stratos.core.placement import Outcome, Placement, PlacementRequest, Work, WorkerRef, WorkerRole
from tests.support.fakes.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually


@dataclass
class FakeRouter:
    """Names the first worker that is not excluded; errors come first."""

    workers: Sequence[ScriptedWorker]
    embedders: list[WorkerRef] = field(default_factory=list)
    """Prefill workers that embed."""
    spread: bool = False
    """Whether embeddings take turns instead of going to the first one."""
    errors: list[StratosError] = field(default_factory=list)
    requests: list[PlacementRequest] = field(default_factory=list)
    num_placed: int = 0
    """Answers with a worker; each is to be completed, also where its worker is gone before it hears of the request."""
    completed: list[tuple[str, Outcome]] = field(default_factory=list)
    convicted: list[PlacementRequest] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    cache_layout: CacheLayout | None = None
    live: dict[str, dict[WorkerRole, int]] = field(default_factory=dict)
    """Live workers by model and role, as the gateway is told."""
    holds: bool = False
    """Whether generations of models without live workers wait."""
    seen: dict[str, dict[WorkerRole, int]] = field(default_factory=dict)
    """All of them; empty: the live ones."""
    choice: dict[str, Any] = field(default_factory=dict)
    """Further fields of placements: what they were chosen from."""

    async def schedule(self, request: PlacementRequest, *, timeout_s: float | None = None) -> Placement:
        self.requests.append(request)
        if self.errors:
            raise self.errors.pop(0)
        if request.work is Work.EMBEDDING:
            return await self._place_embedding(request)
        if self.holds:
            await eventually(lambda: request.model_digest in self.live, "its model has a worker")
        for worker in self.workers:
            if worker.ref.incarnation not in request.excluded_incarnations:
                self.num_placed += 1
                handoff_id = f"handoff-{len(self.requests)}"
                return Placement(
                    decode=worker.ref, handoff_id=handoff_id, cache_layout=self.cache_layout, **self.choice
                )
        await asyncio.Event().wait()
        raise AssertionError

    async def _place_embedding(self, request: PlacementRequest) -> Placement:
        allowed = [ref for ref in self.embedders if ref.incarnation not in request.excluded_incarnations]
        if not allowed:
            await asyncio.Event().wait()
        self.num_placed += 1
        ref = allowed[(len(self.requests) - 1) % len(allowed) if self.spread else 0]
        handoff_id = f"handoff-{len(self.requests)}"
        return Placement(decode=None, prefill=(ref,), handoff_id=handoff_id)

    async def report_load(self, load: object) -> None: ...

    async def live_workers(self) -> dict[str, dict[WorkerRole, int]]:
        return self.live

    async def known_workers(self) -> tuple[dict[str, dict[WorkerRole, int]], dict[str, dict[WorkerRole, int]]]:
        return self.live, self.seen or self.live

    def suspects(self, tenant: str) -> bool:
        return False

    async def convict(self, request: PlacementRequest) -> None:
        self.convicted.append(request)

    async def forget_tenant(self, tenant: str) -> bool:
        self.forgotten.append(tenant)
        return True

    def report(self, placement: Placement, outcome: Outcome, num_output_tokens: int) -> None:
        self.completed.append((placement.handoff_id, outcome))
