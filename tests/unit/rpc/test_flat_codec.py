"""Rows of the flat codec: copies, converted fields, and rows that are refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import pytest

from stratos.api.common.v1 import common_pb2
from stratos.api.kv.v1 import source_pb2
from stratos.api.router.v1 import router_pb2
from stratos.api.worker.v1 import worker_pb2
from stratos.common.errors import BadRequest
from stratos.core.kv import KvIdentity
from stratos.core.placement import AttemptReport, Outcome
from stratos.kv_transfer.capabilities import Capabilities
from stratos.rpc.codec.fields import SET, EnumCodec, FlatField, nested, renamed
from stratos.rpc.codec.flat import FlatCodec
from stratos.rpc.codec.fleet import IDENTITY, REF, ROLE, WORKER_STATUS
from stratos.rpc.codec.placement import ATTEMPT_REPORT, OUTCOME
from stratos.worker.handoff.codec import MAX_FACT_CHARS, response_from_pb, response_to_pb
from stratos.worker.handoff.records import Ready, ReceiverMessage, Refused, SourceMessage
from tests.support.worlds.fleet_samples import make_status

STATUS_FIELDS = {entry.name for entry in worker_pb2.WorkerStatus.DESCRIPTOR.fields}


@dataclass(frozen=True, kw_only=True)
class Placed:
    decode: Any = None
    prefill: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Facts:
    features: tuple[str, ...] = ()
    tenant_tokens: dict[str, int] = field(default_factory=dict)
    place: str = ""


def facts_codec(**changes: Any) -> FlatCodec[Facts, worker_pb2.WorkerStatus]:
    row = {"fields": {"place": renamed("zone")}, "by_hand": STATUS_FIELDS - {"features", "tenant_tokens", "zone"}}
    return FlatCodec(Facts, worker_pb2.WorkerStatus, **(row | changes))


def test_fields_without_a_row_are_copied_as_what_they_are() -> None:
    codec, facts = facts_codec(), Facts(features=("b", "a"), tenant_tokens={"t": 1}, place="z")
    message = codec.to_pb(facts, num_waiting=3)
    assert (list(message.features), dict(message.tenant_tokens), message.zone) == (["b", "a"], {"t": 1}, "z")
    assert message.num_waiting == 3
    assert codec.from_pb(message) == facts


def test_a_set_is_sorted_in_the_message() -> None:
    codec = facts_codec(fields={"place": renamed("zone"), "features": SET})
    message = codec.to_pb(Facts(features=frozenset({"b", "a"})))  # type: ignore[arg-type]
    assert list(message.features) == ["a", "b"]
    assert codec.from_pb(message).features == frozenset({"a", "b"})


def test_a_number_that_may_be_absent_is_none_then() -> None:
    for number in (None, 0, 7):
        report = AttemptReport(handoff_id="h", outcome=Outcome.FAILED, num_output_tokens=number)
        message = ATTEMPT_REPORT.to_pb(report)
        assert message.HasField("num_output_tokens") is (number is not None)
        assert ATTEMPT_REPORT.from_pb(message) == report


def test_a_field_without_a_counterpart_is_refused_when_the_row_is_made() -> None:
    with pytest.raises(TypeError, match=r"has no place"):
        facts_codec(fields={})
    with pytest.raises(TypeError, match=r"Facts has no zones"):
        facts_codec(fields={"place": renamed("zone"), "zones": SET})
    with pytest.raises(TypeError, match=r"Facts has no block_size of stratos\.api\.worker\.v1\.WorkerStatus"):
        facts_codec(by_hand=STATUS_FIELDS - {"features", "tenant_tokens", "zone", "block_size"})
    with pytest.raises(TypeError, match=r"decode is a message: name its codec"):
        FlatCodec(Placed, router_pb2.ScheduleResponse)


def test_a_check_comes_before_the_record() -> None:
    def refuse(message: worker_pb2.WorkerStatus) -> None:
        raise BadRequest(f"no {message.zone}")

    with pytest.raises(BadRequest, match="no z"):
        facts_codec(check=refuse).from_pb(worker_pb2.WorkerStatus(zone="z"))
    with pytest.raises(BadRequest, match="block_size of at least 1"):
        WORKER_STATUS.from_pb(worker_pb2.WorkerStatus())


@pytest.mark.parametrize("field", ["host_load_ratio", "disk_load_ratio", "kv_watermark", "ttft_ms", "itl_ms"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_status_whose_numbers_order_nothing_is_refused(field: str, number: float) -> None:
    """A score that is no number stopped each router that took it."""
    message = WORKER_STATUS.to_pb(make_status())
    setattr(message, field, number)
    with pytest.raises(BadRequest, match="finite"):
        WORKER_STATUS.from_pb(message)


def test_enums_refuse_unknown_numbers_or_take_their_default() -> None:
    for codec, text in ((ROLE, "unknown worker role 99"), (OUTCOME, "unknown outcome 0")):
        with pytest.raises(BadRequest, match=text):
            codec.from_pb(99 if codec is ROLE else 0)
    assert EnumCodec({"a": 1}, default="b").from_pb(7) == "b"
    with pytest.raises(BadRequest, match="unknown worker role 0"):
        REF.from_pb(common_pb2.WorkerRef(worker_id="w"))


def test_equal_messages_of_a_kept_record_give_one_object() -> None:
    identity = KvIdentity(model_digest="m", kv_dtype="f", rope_variant="r", numerics_id="n")
    assert IDENTITY.from_pb(IDENTITY.to_pb(identity)) is IDENTITY.from_pb(IDENTITY.to_pb(identity))


def test_a_message_of_a_kept_record_is_its_own_callers() -> None:
    ref = make_status().ref
    REF.to_pb(ref).address = "elsewhere"
    status = WORKER_STATUS.to_pb(make_status())
    status.worker.address = "elsewhere"
    assert REF.to_pb(ref).address == WORKER_STATUS.to_pb(make_status()).worker.address == ref.address


def test_a_nested_record_is_of_an_empty_message_where_there_is_none() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Named:
        identity: KvIdentity
        size: int = 0

    row = {"identity": nested(IDENTITY), "size": FlatField(wire_name="block_size", decode=lambda n: n + 1)}
    named = FlatCodec(Named, router_pb2.CacheLayout, fields=row).from_pb(router_pb2.CacheLayout())
    assert named == Named(identity=IDENTITY.from_pb(common_pb2.KvIdentity()), size=1)


def test_every_message_of_a_fetch_stream_has_a_codec() -> None:
    wire = {entry.message_type.name for entry in source_pb2.FetchRequest.DESCRIPTOR.fields}
    assert wire == {kind.__name__ for kind in get_args(ReceiverMessage)} - {"NoRoom"} | {"Busy"}
    wire = {entry.message_type.name for entry in source_pb2.FetchResponse.DESCRIPTOR.fields}
    assert wire == {kind.__name__ for kind in get_args(SourceMessage)} - {Refused.__name__} | {"ErrorDetail"}


def test_facts_of_a_peer_are_short_and_printable() -> None:
    worker = make_status().ref
    good = Ready(transport="shm", source=worker, capabilities=Capabilities(host="h" * MAX_FACT_CHARS))
    assert response_from_pb(response_to_pb(good)) == good
    for host in ("h" * (MAX_FACT_CHARS + 1), "a\nb", "é"):
        bad = replace(good, capabilities=Capabilities(host=host))
        with pytest.raises(BadRequest, match=r"capabilities\.host must be at most 128 printable characters"):
            response_from_pb(response_to_pb(bad))
