"""Workers and requests for routing tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from stratos.core.engine_load import EngineLoad
from stratos.core.features import Feature
from stratos.core.fleet import WorkerStatus
from stratos.core.kv import BlockLedger, KvIdentity
from stratos.core.placement import PlacementRequest, WorkerRef, WorkerRole
from stratos.core.rules.admission import KV_WATERMARK
from stratos.routing.admission import Ask
from stratos.routing.worker_view import WorkerView
from tests.support.worlds.terms import with_terms

MODEL = "ab" * 32
IDENTITY = KvIdentity(model_digest=MODEL, kv_dtype="float32", rope_variant="default:10000.0", numerics_id="cpu")


def ledger(total: int, allocated: int = 0, cached: int = 0, reserved: int = 0, fenced: int = 0) -> BlockLedger:
    free = total - allocated - cached - reserved - fenced
    return BlockLedger(total=total, free=free, cached=cached, allocated=allocated, reserved=reserved, fenced=fenced)


def make_status(name: str = "decode-0", role: WorkerRole = WorkerRole.DECODE, **changes: Any) -> WorkerStatus:
    ref = WorkerRef(worker_id=name, incarnation=f"inc-{name}", address=f"host:{name}", role=role)
    status = WorkerStatus(
        ref=ref,
        engine=make_load(num_free_adapter_slots=8),
        identity=IDENTITY,
        max_num_seqs=8,
        features=frozenset(Feature),
    )
    return with_free_slots(status, changes)


def make_load(**changes: Any) -> EngineLoad:
    """An idle engine with 1000 blocks."""
    load = EngineLoad(
        step=0,
        is_computing=False,
        blocks=ledger(1000),
        num_waiting=0,
        num_running=0,
        num_queued_tokens=0,
        num_free_batch_slots=0,
        num_promised_blocks=0,
        p90_output_tokens=256,
        kv_watermark=KV_WATERMARK,
        num_free_adapter_slots=0,
    )
    return dataclasses.replace(load, **changes)


def with_changes(status: WorkerStatus, **changes: Any) -> WorkerStatus:
    """``status`` with other fields, its own or those of its engine."""
    of_engine = {field.name for field in dataclasses.fields(EngineLoad)}
    load = {name: value for name, value in changes.items() if name in of_engine}
    own = {name: value for name, value in changes.items() if name not in of_engine}
    return dataclasses.replace(status, engine=dataclasses.replace(status.engine, **load), **own)


def with_free_slots(status: WorkerStatus, changes: dict[str, Any]) -> WorkerStatus:
    """``status`` with other fields; batch slots that nothing runs in are free, and what is beyond the batch waits."""
    changed = with_changes(status, **{"num_waiting": 0, **changes})
    if "num_free_batch_slots" in changes or not changed.max_num_seqs:
        return changed
    engine = changed.engine
    num_running = min(engine.num_running, changed.max_num_seqs)
    return with_changes(
        changed,
        num_running=num_running,
        num_waiting=engine.num_waiting + engine.num_running - num_running,
        num_free_batch_slots=changed.max_num_seqs - num_running,
    )


def make_view(name: str = "decode-0", role: WorkerRole = WorkerRole.DECODE, **changes: Any) -> WorkerView:
    of_view = {field.name for field in dataclasses.fields(WorkerView) if field.init}
    status = make_status(name, role, **{key: value for key, value in changes.items() if key not in of_view})
    return WorkerView(ref=status.ref, status=status, **{key: value for key, value in changes.items() if key in of_view})


def make_request(request_id: str = "req-1", **changes: Any) -> PlacementRequest:
    request = PlacementRequest(
        request_id=request_id, model_digest=MODEL, num_prompt_tokens=64, max_output_tokens_total=32
    )
    return with_terms(request, **changes)


def make_sample_ask(**changes: Any) -> Ask:
    return Ask(request=make_request(**changes), max_waiting_per_worker=2)
