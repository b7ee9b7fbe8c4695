"""Placement requests, placements and statuses survive the wire whole."""

from __future__ import annotations

from stratos.api.router.v1 import router_pb2
from stratos.core.placement import Placement, Work, WorkerRef, WorkerRole
from stratos.core.requests.terms import Share
from stratos.core.trace import NO_TRACE
from stratos.rpc.codec.fleet import WORKER_STATUS
from stratos.rpc.codec.placement import PLACEMENT, placement_request_from_pb, placement_request_to_part
from tests.support.worlds.fleet_samples import ledger, make_request, make_status

NOW_S = 50.0


def test_every_field_of_a_placement_request_survives() -> None:
    request = make_request(
        attempt=2,
        tenant="t",
        priority_class=1,
        share=Share(
            weight=3,
            max_batch_ratio=0.5,
            kv_headroom_ratio=0.25,
            pools=frozenset({"fast", "near"}),
            kept_kv={"slow": 0.5},
        ),
        adapter_digest="d",
        arrival_s=NOW_S,
        deadline_s=NOW_S + 2.5,
        num_choices=3,
        work=Work.EMBEDDING,
        excluded_incarnations=frozenset({"a", "b"}),
        waited_ms=70,
        overflow_after_ms=2500,
        num_emitted_tokens=9,
        is_move=True,
        is_suspect=True,
        refusals={"c": 4, "d": 2**40},
        required_features=frozenset({"grammar", "resume"}),
        trace=NO_TRACE,
    )
    assert (
        placement_request_from_pb(router_pb2.ScheduleRequest(**placement_request_to_part(request, NOW_S)), NOW_S)
        == request
    )


def test_every_field_of_a_placement_survives() -> None:
    decode = WorkerRef(worker_id="d", incarnation="i", address="h:1", role=WorkerRole.DECODE)
    prefill = WorkerRef(worker_id="p", incarnation="j", address="h:2", role=WorkerRole.PREFILL)
    placement = Placement(
        decode=decode,
        prefill=(prefill,),
        handoff_id="h",
        queued_ms=5,
        status_version=6,
        scores={"d": 0.75, "e": 0.5},
        rejections={"f": "kv_room"},
        num_unnamed=7,
        queue_samples=(0, 4, 250, 2),
    )
    assert PLACEMENT.from_pb(PLACEMENT.to_pb(placement)) == placement


def test_what_admission_goes_by_survives_in_a_status() -> None:
    status = make_status(
        version=2**40,
        num_promised_blocks=3,
        p90_output_tokens=4,
        num_free_batch_slots=5,
        num_free_adapter_slots=6,
        tenant_tokens={"t": 7},
        kv_watermark=0.8,
        num_routers=2,
    )
    assert WORKER_STATUS.from_pb(WORKER_STATUS.to_pb(status)) == status


def test_an_engines_load_lies_in_the_message_of_the_status_itself() -> None:
    status = make_status(step=7, slow_step_s=0.25, blocks=ledger(10, allocated=3), num_queued_tokens=5, num_running=2)
    message = WORKER_STATUS.to_pb(status)
    assert (message.engine_step, message.slow_step_ms, message.blocks.num_allocated) == (7, 250, 3)
    assert (message.num_queued_tokens, message.num_running) == (5, 2)
    assert WORKER_STATUS.from_pb(message) == status
