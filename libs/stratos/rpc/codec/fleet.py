"""Worker and fleet records <-> messages: rows for ``WatchStatus``, ``ReportLoad`` and ``GetFleet``."""

from __future__ import annotations

import math

from stratos.api.common.v1 import common_pb2
from stratos.api.router.v1 import router_pb2
from stratos.api.worker.v1 import worker_pb2
from stratos.common.errors import BadRequest
from stratos.core.engine_load import EngineLoad
from stratos.core.fleet import Fleet, FleetWorker, QueueDepth, ServiceMark, SleepState, WorkerStatus
from stratos.core.gateway_load import NUM_TTFT_COUNTS, GatewayLoad
from stratos.core.kv import BlockLedger, KvIdentity, StagingLedger
from stratos.core.placement import Work, WorkerRef, WorkerRole
from stratos.rpc.codec.fields import SET, EnumCodec, each, fractional_ms, nested, optional, renamed, whole_ms
from stratos.rpc.codec.flat import FlatCodec


def _check_status(message: worker_pb2.WorkerStatus) -> None:
    if message.block_size < 1:
        raise BadRequest("a worker status must have a block_size of at least 1", param="block_size")
    ratios = message.host_load_ratio + message.disk_load_ratio + message.kv_watermark
    if not math.isfinite(ratios + message.ttft_ms + message.itl_ms):  # scores would be no numbers, and order nothing
        raise BadRequest("times and ratios of a worker status must be finite numbers")


def _check_load(message: router_pb2.GatewayLoad) -> None:
    if not message.gateway:
        raise BadRequest("a gateway's load must name the gateway")
    if len(message.first_tokens) not in (0, NUM_TTFT_COUNTS):
        raise BadRequest(f"first_tokens must have {NUM_TTFT_COUNTS} counts")


ROLE = EnumCodec(
    {WorkerRole.PREFILL: common_pb2.WORKER_ROLE_PREFILL, WorkerRole.DECODE: common_pb2.WORKER_ROLE_DECODE},
    name="worker role",
    param="role",
)
WORK = EnumCodec(
    {Work.GENERATION: router_pb2.WORK_UNSPECIFIED, Work.EMBEDDING: router_pb2.WORK_EMBEDDING},
    name="work",
    param="work",
)
SLEEP_STATE = EnumCodec(
    {
        SleepState.AWAKE: worker_pb2.SLEEP_STATE_UNSPECIFIED,
        SleepState.FALLING_ASLEEP: worker_pb2.SLEEP_STATE_FALLING_ASLEEP,
        SleepState.ASLEEP: worker_pb2.SLEEP_STATE_ASLEEP,
        SleepState.WAKING: worker_pb2.SLEEP_STATE_WAKING,
        SleepState.FAILED: worker_pb2.SLEEP_STATE_FAILED,
        SleepState.STANDBY: worker_pb2.SLEEP_STATE_STANDBY,
    },
    name="sleep state",
    param="sleep_state",
)
REF = FlatCodec(WorkerRef, common_pb2.WorkerRef, fields={"role": ROLE.field}, cache_size=4096)
IDENTITY = FlatCodec(KvIdentity, common_pb2.KvIdentity, cache_size=256)
"""Equal identities are one object, which makes comparing them cheap."""
BLOCKS = FlatCodec(
    BlockLedger,
    common_pb2.BlockLedger,
    fields={name: renamed(f"num_{name}") for name in ("total", "free", "cached", "allocated", "reserved", "fenced")},
)
STAGING = FlatCodec(
    StagingLedger,
    common_pb2.StagingLedger,
    fields={name: renamed(f"num_{name}") for name in ("total", "free", "granted", "quarantined")},
)
_ENGINE_FIELDS = {
    "step": renamed("engine_step"),
    "slow_step_s": whole_ms("slow_step_ms"),
    "blocks": nested(BLOCKS),
}
SERVICE_MARK = FlatCodec(ServiceMark, worker_pb2.ServiceMark)
WORKER_STATUS = FlatCodec(
    WorkerStatus,
    worker_pb2.WorkerStatus,
    fields={
        "ref": nested(REF, "worker"),
        "staging": nested(STAGING),
        "identity": nested(IDENTITY),
        "resident_adapters": SET.under("resident_adapter_digests"),
        "features": SET,
        "service_marks": each(SERVICE_MARK),
        "ttft_s": fractional_ms("ttft_ms"),
        "itl_s": fractional_ms("itl_ms"),
        "sleep_state": SLEEP_STATE.field,
    },
    inline={"engine": (EngineLoad, _ENGINE_FIELDS)},
    check=_check_status,
)
GATEWAY_LOAD = FlatCodec(GatewayLoad, router_pb2.GatewayLoad, fields={"age_s": whole_ms("age_ms")}, check=_check_load)
QUEUE_DEPTH = FlatCodec(
    QueueDepth, router_pb2.QueueDepth, fields={"oldest_s": whole_ms("oldest_ms"), "work": WORK.field}
)
FLEET_WORKER = FlatCodec(
    FleetWorker,
    router_pb2.FleetWorker,
    fields={"ref": nested(REF, "worker"), "status": optional(WORKER_STATUS), "age_s": whole_ms("age_ms")},
)
FLEET = FlatCodec(
    Fleet,
    router_pb2.GetFleetResponse,
    fields={"queues": each(QUEUE_DEPTH), "workers": each(FLEET_WORKER), "gateways": each(GATEWAY_LOAD)},
)
