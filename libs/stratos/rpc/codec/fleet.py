"""Worker and fleet records <-> messages, both ways.

Used by servers and readers of ``WatchStatus`` and ``GetFleet``; nothing else touches these pb2 types.
"""

from __future__ import annotations

from functools import lru_cache

from stratos.api.common.v1 import common_pb2
from stratos.api.router.v1 import router_pb2
from stratos.api.worker.v1 import worker_pb2
from stratos.common.errors import BadRequest
from stratos.core.fleet import Fleet, FleetWorker, QueueDepth, WorkerStatus
from stratos.core.gateway_load import NUM_TTFT_COUNTS, GatewayLoad
from stratos.core.kv import BlockLedger, KvIdentity, StagingLedger
from stratos.core.placement import Work, WorkerRef, WorkerRole

_ROLE_TO_PB = {
    WorkerRole.PREFILL: common_pb2.WORKER_ROLE_PREFILL,
    WorkerRole.DECODE: common_pb2.WORKER_ROLE_DECODE,
}
_ROLE_FROM_PB: dict[int, WorkerRole] = {number: role for role, number in _ROLE_TO_PB.items()}


def role_to_pb(role: WorkerRole) -> common_pb2.WorkerRole:
    """The enum value of a role."""
    return _ROLE_TO_PB[role]


def role_from_pb(number: int) -> WorkerRole:
    """The role of an enum value.

    Raises:
        BadRequest: unspecified, or one this build does not know.
    """
    if number not in _ROLE_FROM_PB:
        raise BadRequest(f"unknown worker role {number}", param="role")
    return _ROLE_FROM_PB[number]


def work_to_pb(work: Work) -> router_pb2.Work:
    """The enum value of what a request asks for."""
    return router_pb2.WORK_EMBEDDING if work is Work.EMBEDDING else router_pb2.WORK_UNSPECIFIED


def work_from_pb(number: int) -> Work:
    """What an enum value asks for.

    Raises:
        BadRequest: one this build does not know.
    """
    if number not in (router_pb2.WORK_UNSPECIFIED, router_pb2.WORK_EMBEDDING):
        raise BadRequest(f"unknown work {number}", param="work")
    return Work.EMBEDDING if number == router_pb2.WORK_EMBEDDING else Work.GENERATION


def ref_to_pb(ref: WorkerRef) -> common_pb2.WorkerRef:
    """A worker's name as a message."""
    return common_pb2.WorkerRef(
        worker_id=ref.worker_id, incarnation=ref.incarnation, address=ref.address, role=role_to_pb(ref.role)
    )


def ref_from_pb(message: common_pb2.WorkerRef) -> WorkerRef:
    """A worker's name from a message.

    Raises:
        BadRequest: the role is unknown.
    """
    return _ref(message.worker_id, message.incarnation, message.address, role_from_pb(message.role))


@lru_cache(maxsize=4096)
def _ref(worker_id: str, incarnation: str, address: str, role: WorkerRole) -> WorkerRef:
    return WorkerRef(worker_id=worker_id, incarnation=incarnation, address=address, role=role)


def identity_to_pb(identity: KvIdentity) -> common_pb2.KvIdentity:
    """A KV identity as a message."""
    return common_pb2.KvIdentity(
        model_digest=identity.model_digest,
        kv_dtype=identity.kv_dtype,
        rope_variant=identity.rope_variant,
        numerics_id=identity.numerics_id,
        protocol_version=identity.protocol_version,
    )


def identity_from_pb(message: common_pb2.KvIdentity) -> KvIdentity:
    """A KV identity from a message; equal ones are one object, which makes comparing them cheap."""
    return _identity(
        message.model_digest, message.kv_dtype, message.rope_variant, message.numerics_id, message.protocol_version
    )


@lru_cache(maxsize=256)
def _identity(
    model_digest: str, kv_dtype: str, rope_variant: str, numerics_id: str, protocol_version: int
) -> KvIdentity:
    return KvIdentity(
        model_digest=model_digest,
        kv_dtype=kv_dtype,
        rope_variant=rope_variant,
        numerics_id=numerics_id,
        protocol_version=protocol_version,
    )


def blocks_to_pb(blocks: BlockLedger) -> common_pb2.BlockLedger:
    """A block ledger as a message."""
    return common_pb2.BlockLedger(
        num_total=blocks.total,
        num_free=blocks.free,
        num_cached=blocks.cached,
        num_allocated=blocks.allocated,
        num_reserved=blocks.reserved,
        num_fenced=blocks.fenced,
    )


def blocks_from_pb(message: common_pb2.BlockLedger) -> BlockLedger:
    """A block ledger from a message."""
    return BlockLedger(
        total=message.num_total,
        free=message.num_free,
        cached=message.num_cached,
        allocated=message.num_allocated,
        reserved=message.num_reserved,
        fenced=message.num_fenced,
    )


def status_to_pb(status: WorkerStatus) -> worker_pb2.WorkerStatus:
    """A worker's status as a message."""
    return worker_pb2.WorkerStatus(
        worker=ref_to_pb(status.ref),
        engine_step=status.engine_step,
        is_computing=status.is_computing,
        blocks=blocks_to_pb(status.blocks),
        staging=common_pb2.StagingLedger(
            num_total=status.staging.total,
            num_free=status.staging.free,
            num_granted=status.staging.granted,
            num_quarantined=status.staging.quarantined,
        ),
        num_waiting=status.num_waiting,
        num_running=status.num_running,
        num_queued_tokens=status.num_queued_tokens,
        num_handoffs=status.num_handoffs,
        num_orphans=status.num_orphans,
        is_draining=status.is_draining,
        not_ready_reason=status.not_ready_reason,
        identity=identity_to_pb(status.identity),
        resident_adapter_digests=sorted(status.resident_adapters),
        block_size=status.block_size,
        max_num_seqs=status.max_num_seqs,
        slow_step_ms=round(status.slow_step_s * 1000),
        features=sorted(status.features),
        protocol_version=status.protocol_version,
        ttft_ms=status.ttft_s * 1000,
        itl_ms=status.itl_s * 1000,
        zone=status.zone,
        version=status.version,
        num_promised_blocks=status.num_promised_blocks,
        p90_output_tokens=status.p90_output_tokens,
        num_free_batch_slots=status.num_free_batch_slots,
        num_free_adapter_slots=status.num_free_adapter_slots,
        tenant_tokens=status.tenant_tokens,
        kv_watermark=status.kv_watermark,
        num_routers=status.num_routers,
    )


def status_from_pb(message: worker_pb2.WorkerStatus) -> WorkerStatus:
    """A worker's status from a message.

    Raises:
        BadRequest: the role is unknown or the block size is zero.
    """
    if message.block_size < 1:
        raise BadRequest("a worker status must have a block_size of at least 1", param="block_size")
    return WorkerStatus(
        ref=ref_from_pb(message.worker),
        engine_step=message.engine_step,
        is_computing=message.is_computing,
        blocks=blocks_from_pb(message.blocks),
        staging=StagingLedger(
            total=message.staging.num_total,
            free=message.staging.num_free,
            granted=message.staging.num_granted,
            quarantined=message.staging.num_quarantined,
        ),
        num_waiting=message.num_waiting,
        num_running=message.num_running,
        num_queued_tokens=message.num_queued_tokens,
        num_handoffs=message.num_handoffs,
        num_orphans=message.num_orphans,
        is_draining=message.is_draining,
        not_ready_reason=message.not_ready_reason,
        identity=identity_from_pb(message.identity),
        resident_adapters=frozenset(message.resident_adapter_digests),
        block_size=message.block_size,
        max_num_seqs=message.max_num_seqs,
        slow_step_s=message.slow_step_ms / 1000,
        features=frozenset(message.features),
        protocol_version=message.protocol_version,
        ttft_s=message.ttft_ms / 1000,
        itl_s=message.itl_ms / 1000,
        zone=message.zone,
        version=message.version,
        num_promised_blocks=message.num_promised_blocks,
        p90_output_tokens=message.p90_output_tokens,
        num_free_batch_slots=message.num_free_batch_slots,
        num_free_adapter_slots=message.num_free_adapter_slots,
        tenant_tokens=dict(message.tenant_tokens),
        kv_watermark=message.kv_watermark,
        num_routers=message.num_routers,
    )


def fleet_to_pb(fleet: Fleet) -> router_pb2.GetFleetResponse:
    """Queues and workers as a message."""
    return router_pb2.GetFleetResponse(
        queues=[
            router_pb2.QueueDepth(
                model_digest=queue.model_digest,
                priority_class=queue.priority_class,
                num_requests=queue.num_requests,
                num_tokens=queue.num_tokens,
                oldest_ms=round(queue.oldest_s * 1000),
                work=work_to_pb(queue.work),
            )
            for queue in fleet.queues
        ],
        workers=[_fleet_worker_to_pb(worker) for worker in fleet.workers],
        gateways=[gateway_load_to_pb(load) for load in fleet.gateways],
    )


def _fleet_worker_to_pb(worker: FleetWorker) -> router_pb2.FleetWorker:
    return router_pb2.FleetWorker(
        status=None if worker.status is None else status_to_pb(worker.status),
        is_live=worker.is_live,
        out_reason=worker.out_reason,
        age_ms=round(worker.age_s * 1000),
        num_booked=worker.num_booked,
        worker=ref_to_pb(worker.ref),
    )


def fleet_from_pb(message: router_pb2.GetFleetResponse) -> Fleet:
    """Queues and workers from a message.

    Raises:
        BadRequest: a worker in it is malformed.
    """
    return Fleet(
        queues=tuple(
            QueueDepth(
                model_digest=queue.model_digest,
                priority_class=queue.priority_class,
                num_requests=queue.num_requests,
                num_tokens=queue.num_tokens,
                oldest_s=queue.oldest_ms / 1000,
                work=work_from_pb(queue.work),
            )
            for queue in message.queues
        ),
        workers=tuple(
            FleetWorker(
                ref=ref_from_pb(worker.worker),
                status=status_from_pb(worker.status) if worker.HasField("status") else None,
                is_live=worker.is_live,
                out_reason=worker.out_reason,
                age_s=worker.age_ms / 1000,
                num_booked=worker.num_booked,
            )
            for worker in message.workers
        ),
        gateways=tuple(gateway_load_from_pb(load) for load in message.gateways),
    )


def gateway_load_to_pb(load: GatewayLoad) -> router_pb2.GatewayLoad:
    """A gateway's load as a message."""
    return router_pb2.GatewayLoad(
        gateway=load.gateway,
        model_digest=load.model_digest,
        num_open=load.num_open,
        num_judged=load.num_judged,
        num_violations=load.num_violations,
        first_tokens=load.first_tokens,
        age_ms=round(load.age_s * 1000),
    )


def gateway_load_from_pb(message: router_pb2.GatewayLoad) -> GatewayLoad:
    """A gateway's load from a message.

    Raises:
        BadRequest: it has no name, or counts of other bounds.
    """
    if not message.gateway:
        raise BadRequest("a gateway's load must name the gateway")
    if len(message.first_tokens) not in (0, NUM_TTFT_COUNTS):
        raise BadRequest(f"first_tokens must have {NUM_TTFT_COUNTS} counts")
    return GatewayLoad(
        gateway=message.gateway,
        model_digest=message.model_digest,
        num_open=message.num_open,
        num_judged=message.num_judged,
        num_violations=message.num_violations,
        first_tokens=tuple(message.first_tokens),
        age_s=message.age_ms / 1000,
    )
