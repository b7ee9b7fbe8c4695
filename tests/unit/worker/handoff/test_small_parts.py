"""Small parts of a worker: pairing, waiting for staging slots, messages."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from stratos.common.errors import BadRequest, Busy, IdentityMismatch
from stratos.core.kv import KvGeometry, KvIdentity, KvRange
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.kv_transfer.capabilities import Capabilities, LocalCapabilities
from stratos.kv_transfer.inproc import InprocHub, inproc_ends
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.port.slot_queue import SlotQueue
from stratos.kv_transfer.settings import StagingConfig, TransportConfig
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer
from stratos.worker.engine_client.remote_port import RemotePort
from stratos.worker.handoff.codec import request_from_pb, request_to_pb, response_from_pb, response_to_pb
from stratos.worker.handoff.pairing import check_choice, check_pairing, choose_transport, is_one_host
from stratos.worker.handoff.records import (
    Abort,
    AbortAck,
    Ack,
    Credit,
    Finish,
    Grant,
    Intent,
    Nack,
    NoRoom,
    Progress,
    Ready,
    ReceiverMessage,
    Refused,
    Sent,
    SourceMessage,
    SourcePhase,
)
from stratos.worker.handoff.transports import Transports
from tests.support.kv.memory_pages import MemoryPages
from tests.support.worlds.terms import make_terms

NOW_S = 1000.0
IDENTITY = KvIdentity(model_digest="m", kv_dtype="float32", rope_variant="default", numerics_id="cpu")
SHAPE = KvGeometry(num_layers=2, num_kv_heads=1, head_dim=4, block_size=16, element_bytes=0)
REF = WorkerRef(worker_id="w", incarnation="i", address="127.0.0.1:1", role=WorkerRole.DECODE)
FACTS = Capabilities(host="boot", shared_memory="1.1", device="GPU-a", fabric="f.1")
OFFER = TransportOffer(transport="shm", pair="a>b#1", address="x", slot_bytes=4096, num_slots=2)


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(KvIdentity)])
def test_every_field_of_the_identity_must_be_equal(field: str) -> None:
    check_pairing(IDENTITY, IDENTITY, SHAPE, SHAPE)
    other = dataclasses.replace(IDENTITY, **{field: 2 if field == "protocol_version" else "other"})
    with pytest.raises(IdentityMismatch, match=field):
        check_pairing(IDENTITY, other, SHAPE, SHAPE)


def test_shape_must_be_equal_and_block_size_need_not() -> None:
    check_pairing(IDENTITY, IDENTITY, SHAPE, dataclasses.replace(SHAPE, block_size=32))
    with pytest.raises(IdentityMismatch):
        check_pairing(IDENTITY, IDENTITY, SHAPE, dataclasses.replace(SHAPE, head_dim=8))


def test_shared_memory_only_where_both_see_it() -> None:
    both, mine = ("shm", "gloo"), LocalCapabilities(facts=FACTS)
    assert choose_transport(both, both, mine, FACTS) == "shm"
    for other in (dataclasses.replace(FACTS, shared_memory="1.2"), Capabilities()):
        assert choose_transport(both, both, mine, other) == "gloo"
        with pytest.raises(IdentityMismatch, match="no KV transport joins"):
            choose_transport(("shm",), both, mine, other)


def test_the_choice_of_a_source_is_checked() -> None:
    mine, offered = LocalCapabilities(facts=FACTS), ("shm", "gloo")
    check_choice("shm", offered, mine, FACTS, is_one_host=False)
    check_choice("gloo", offered, mine, Capabilities(), is_one_host=False)
    check_choice("shm", offered, mine, Capabilities(), is_one_host=True)
    for transport, theirs in (("shm", Capabilities()), ("tls", FACTS), ("", FACTS)):
        with pytest.raises(IdentityMismatch, match="chose the KV transport"):
            check_choice(transport, offered, mine, theirs, is_one_host=False)
    assert is_one_host("10.0.0.1:7000", "10.0.0.1:7001")
    assert not is_one_host("10.0.0.1:7000", "10.0.0.2:7000")


@pytest.mark.parametrize("transport", ["nccl", "cuda_ipc"])
def test_a_source_that_says_nothing_of_its_device_may_choose_none_between_devices(transport: str) -> None:
    mine = LocalCapabilities(facts=dataclasses.replace(FACTS, device="GPU-a"), peers=frozenset({"GPU-b"}))
    neighbour = dataclasses.replace(FACTS, device="GPU-b")
    check_choice(transport, (transport, "gloo"), mine, neighbour, is_one_host=False)
    for is_near in (False, True):
        with pytest.raises(IdentityMismatch, match=f"'{transport}', and says nothing of its host and device"):
            check_choice(transport, (transport, "gloo"), mine, Capabilities(), is_one_host=is_near)
        with pytest.raises(IdentityMismatch, match="does not join"):
            check_choice(
                transport, (transport, "gloo"), mine, dataclasses.replace(FACTS, device=""), is_one_host=is_near
            )
    with pytest.raises(IdentityMismatch, match="was not offered"):
        check_choice(transport, ("gloo",), mine, neighbour, is_one_host=True)


def test_a_transport_that_has_shown_not_to_work_is_spoken_no_more(caplog: pytest.LogCaptureFixture) -> None:
    def never(*_: object) -> None:
        raise AssertionError("nothing is made")

    names = ("cuda_ipc", "shm", "gloo")
    transports = Transports(names, RemotePort(never, never), "inc-d", TransportConfig())  # type: ignore[arg-type]
    for _ in range(2):
        transports.leave_out("cuda_ipc", "it maps nothing", "GPU-b")
    assert caplog.text.count("it maps nothing") == 1
    assert transports.names == transports.names_for("GPU-a") == names
    assert transports.names_for("GPU-b") == names[1:]
    transports.leave_out("cuda_ipc", "no IPC")
    assert transports.names == transports.names_for("GPU-a") == names[1:]
    transports.leave_out("shm", "no room")
    transports.leave_out("gloo", "no network")
    assert transports.names == names, "none works, so none is worse than another"


def test_facts_that_are_missing_are_unknown_and_wild_ones_are_refused() -> None:
    message = response_to_pb(Ready(transport="shm", source=REF, capabilities=FACTS))
    for bad in ("x" * 129, "a\nb", "\N{SNOWMAN}"):
        message.ready.capabilities.device = bad
        with pytest.raises(BadRequest, match=r"capabilities\.device must be"):
            response_from_pb(message)
    message.ready.ClearField("capabilities")
    assert response_from_pb(message) == Ready(transport="shm", source=REF)


async def test_wait_for_a_slot_is_in_order_and_bounded() -> None:
    config = StagingConfig(slot_bytes=64, slots_per_pair=1)
    transport = PortTransport(make=lambda: inproc_ends(config, InprocHub()))
    staging = StagingSlots("inproc", "d", config, LocalPort({"inproc": transport}, MemoryPages()))
    queue = SlotQueue(5.0)
    offer, slots = await queue.allocate(staging, "p", 1, "a")
    waiting = [asyncio.create_task(queue.allocate(staging, "p", 1, leg)) for leg in ("b", "c")]
    elsewhere = await queue.allocate(staging, "q", 1, "x")
    assert elsewhere[1] == [0], "another source's slots are its own"
    staging.release_slot(offer.pair, slots[0])
    queue.freed()
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert waiting[0].done()
    assert not waiting[1].done()
    waiting[1].cancel()
    await asyncio.wait(waiting)
    with pytest.raises(Busy):
        await SlotQueue(0.01).allocate(staging, "p", 1, "d")


HEADER = FrameHeader(
    leg="l",
    seq=1,
    kv_range=KvRange(3, 5, 0, 2),
    head_begin=0,
    head_end=1,
    num_bytes=64,
    checksum=2**64 - 1,
    slot=1,
)


@pytest.mark.parametrize(
    "message",
    [
        Intent(
            handoff_id="h",
            request_id="r",
            attempt=2,
            leg="l",
            token_ids=(1, 2, 3),
            compute=True,
            identity=IDENTITY,
            geometry=SHAPE,
            receiver=REF,
            transports=("shm",),
            capabilities=FACTS,
            terms=make_terms(cache_salt=b"s", arrival_s=NOW_S, deadline_s=NOW_S + 5),
        ),
        Grant(num_skip_tokens=1, slots=(0, 1), offer=OFFER),
        NoRoom(reason="busy"),
        Credit(slots=(1,)),
        Nack(seq=3, slot=1),
        Ack(),
        Abort(reason="cancelled"),
    ],
)
def test_receiver_messages_survive_the_wire(message: ReceiverMessage) -> None:
    assert request_from_pb(request_to_pb(message, NOW_S), NOW_S) == message


@pytest.mark.parametrize(
    "message",
    [
        Progress(phase=SourcePhase.COMPUTING, queue_position=2, engine_step=7),
        Ready(transport="shm", source=REF, capabilities=FACTS),
        HEADER,
        Sent(leg="l", seq=1),
        Finish(num_frames=2, digest=b"d", queue_ns=1, prefill_ns=2, num_computed_tokens=3, num_cached_tokens=4),
        AbortAck(),
    ],
)
def test_source_messages_survive_the_wire(message: SourceMessage) -> None:
    assert response_from_pb(response_to_pb(message)) == message


def test_refusal_keeps_its_class() -> None:
    answer = response_from_pb(response_to_pb(Refused(Busy("full"))))
    assert isinstance(answer, Refused)
    assert isinstance(answer.error, Busy)
