"""One suite over every KV transport: what a hand-off may rely on, over every transport."""

import asyncio
import gc
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from stratos.common.errors import Internal, Overloaded, WorkerLost
from stratos.core.kv import StagingLedger
from stratos.kv_transfer.framing import checksum
from stratos.kv_transfer.port.local import LocalPort
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.registry import port_transports
from stratos.kv_transfer.settings import GlooConfig, TransportConfig
from tests.support.kv.kv_transfer_world import SLOT_BYTES, World, header_of, payload_of
from tests.support.kv.port_process import FilePages
from tests.support.kv.segment_memory import SEGMENTS
from tests.support.waiting import eventually

TRANSPORTS = ["inproc", "shm", "gloo", "tls", "ordered-gloo", SEGMENTS]
MOVED = ["shm in the engine's process", "gloo in the engine's process"]
"""With the data port in another process: one that completes on ``Sent``, and one with posted receives."""
ALL_MOVED = [*MOVED, "tls in the engine's process", f"{SEGMENTS} in the engine's process"]
IN_ORDER = ("ordered-gloo",)
"""Here a frame that is announced and late holds up the frames of other legs of its pair."""
ODD_SIZES = [1, 2, 63, 4095, 4097, SLOT_BYTES - 1, SLOT_BYTES]


@pytest.fixture(params=[*TRANSPORTS, *MOVED])
async def world(request, tmp_path):
    (tmp_path / "staging").mkdir(mode=0o700, exist_ok=True)
    name, _, is_moved = request.param.partition(" in ")
    made = World(name, tmp_path / "staging")
    if is_moved:
        await made.move_port()
    yield made
    await made.close()


@pytest.mark.parametrize("world", [*TRANSPORTS, *ALL_MOVED], indirect=True)
async def test_many_frames_of_odd_sizes_through_few_slots(world):
    link = await world.link()
    assert len(link.slots) == 2
    for seq in range(70):
        slot = link.slots[seq % 2]
        payload = payload_of(seq, ODD_SIZES[seq % len(ODD_SIZES)])
        got = await link.transfer(seq, slot, payload)
        assert bytes(got) == payload
        world.receiver.recycle_slot(link.name, slot)
    assert world.receiver.ledger() == StagingLedger(total=4, free=2, granted=2)
    link.release()
    assert world.receiver.ledger() == StagingLedger(total=4, free=4)


async def test_pairs_do_not_mix(world):
    async def hand_off(number):
        link = await world.link(source=f"inc-p{number}", leg=f"leg-{number}")
        for seq in range(20):
            payload = payload_of(1000 * number + seq, 5000 + number)
            got = await link.transfer(seq, link.slots[seq % 2], payload)
            assert checksum(got) == checksum(payload)
            world.receiver.recycle_slot(link.name, link.slots[seq % 2])
        link.release()
        return link.name

    names = await asyncio.gather(*(hand_off(number) for number in range(4)))
    assert len(set(names)) == 4
    assert world.receiver.ledger() == StagingLedger(total=16, free=16)


async def test_legs_of_one_pair_run_side_by_side(world):
    first = await world.link(want=2, leg="leg-1")
    second = first.leg_of("leg-2", want=1)
    assert not set(first.slots) & set(second.slots)

    async def run(link):
        for seq in range(15):
            payload = payload_of(1000 * link.slots[0] + seq, 9999)
            assert bytes(await link.transfer(seq, link.slots[0], payload)) == payload
            world.receiver.recycle_slot(link.name, link.slots[0])

    await asyncio.gather(run(first), run(second))


async def test_frames_may_be_sent_in_another_order_than_announced(world):
    link = await world.link(want=8)
    more = link.leg_of(link.leg, want=8)
    slots = [*link.slots, *more.slots]
    payloads = [payload_of(seq, 3000 + seq) for seq in range(len(slots))]
    headers = [link.post(seq, slot, payloads[seq]) for seq, slot in enumerate(slots)]
    # At the same time: where frames are paired by order, the first to be sent waits for those announced before it.
    await asyncio.gather(*(link.send(header, payloads[header.seq]) for header in reversed(headers)))
    for seq, payload in enumerate(payloads):
        assert bytes(await link.wait(seq)) == payload


async def test_payload_may_leave_before_the_header_is_seen(world):
    link = await world.link()
    payload = payload_of(0, 40_000)
    sending = asyncio.create_task(link.sender.send(header_of(link.leg, 0, link.slots[0], payload), payload))
    await asyncio.sleep(0)
    link.post(0, link.slots[0], payload)
    await sending
    world.receiver.notify_sent(link.name, link.leg, 0)
    assert bytes(await link.wait(0)) == payload


async def test_opening_and_connecting_twice_gives_the_same_pair(world):
    offers = await asyncio.gather(*(world.receiver.open_pair("inc-p") for _ in range(3)))
    assert offers[0] == offers[1] == offers[2]
    sender = world.sender()
    pairs = await asyncio.gather(*(sender.connect(offers[0]) for _ in range(3)))
    assert pairs[0] is pairs[1] is pairs[2]
    assert await sender.connect(offers[0]) is pairs[0]
    assert world.receiver.ledger().total == 4


async def test_every_granted_leg_has_a_slot_and_credits_are_bounded(world):
    offer = await world.receiver.open_pair("inc-p")
    grants = [world.receiver.allocate_slots(offer.pair, 100, leg=f"leg-{n}") for n in range(5)]
    assert [len(grant) for grant in grants] == [2, 1, 1, 0, 0]
    assert sorted(slot for grant in grants for slot in grant) == [0, 1, 2, 3]
    assert world.receiver.slots_of(offer.pair, "leg-0") == grants[0]
    world.receiver.release_slot(offer.pair, grants[0][0])
    assert world.receiver.allocate_slots(offer.pair, 1, leg="leg-9") == [grants[0][0]]


@pytest.mark.parametrize("world", [name for name in TRANSPORTS if name not in IN_ORDER], indirect=True)
async def test_a_zombie_of_an_older_leg_disturbs_nobody(world):
    zombie = await world.link(leg="leg-old")
    late = payload_of(99, SLOT_BYTES)
    header = zombie.post(0, zombie.slots[0], late)
    world.receiver.quarantine(zombie.name, zombie.slots, leg="leg-old")
    with pytest.raises(WorkerLost, match="given up"):
        await zombie.wait(0)

    fresh = zombie.leg_of("leg-new", want=9)
    rest = zombie.leg_of("leg-new", want=9)
    granted = [*fresh.slots, *rest.slots]
    assert len(granted) == 2
    assert not set(granted) & set(zombie.slots)
    payload = payload_of(0, SLOT_BYTES)
    got = await fresh.transfer(0, granted[0], payload)
    await zombie.send(header, late)
    assert bytes(got) == payload
    await _until_free(world, 1)
    assert world.receiver.allocate_slots(zombie.name, 1, leg="leg-3") == zombie.slots[:1]
    assert world.receiver.ledger() == StagingLedger(total=4, free=0, granted=3, quarantined=1)
    world.receiver.settle(zombie.name, "leg-old")
    assert world.receiver.ledger().quarantined == 0


async def _until_free(world, num_free):
    """A posted receive completes in a thread: give it until it has settled its slot."""
    await eventually(lambda: world.receiver.ledger().free == num_free)


async def test_abort_ack_frees_credits_that_were_never_used(world):
    link = await world.link()
    world.receiver.quarantine(link.name, link.slots, leg=link.leg)
    assert world.receiver.ledger() == StagingLedger(total=4, free=2, quarantined=2)
    world.receiver.settle(link.name, "another-leg")
    assert world.receiver.ledger().quarantined == 2
    world.receiver.settle(link.name, link.leg)
    assert world.receiver.ledger() == StagingLedger(total=4, free=4)


async def test_a_header_after_the_abort_is_received_and_thrown_away(world):
    link = await world.link()
    world.receiver.quarantine(link.name, link.slots, leg=link.leg)
    payload = payload_of(0, 100)
    await link.send(link.post(0, link.slots[0], payload), payload)
    await _until_free(world, 3)
    assert world.receiver.ledger() == StagingLedger(total=4, free=3, quarantined=1)


async def test_a_pair_with_nothing_but_quarantine_is_replaced(world):
    link = await world.link(want=9)
    more = [link.leg_of("leg-1", want=9) for _ in range(2)]
    for part in (link, *more):
        world.receiver.quarantine(link.name, part.slots, leg="leg-1")
    again = await world.link(leg="leg-2")
    assert again.name != link.name
    payload = payload_of(5, 777)
    assert bytes(await again.transfer(0, again.slots[0], payload)) == payload
    assert world.receiver.ledger() == StagingLedger(total=4, free=2, granted=2)


async def test_a_damaged_frame_is_sent_again_in_the_same_or_another_slot(world):
    link = await world.link()
    for slot in (link.slots[0], link.slots[1], link.slots[1]):
        payload = payload_of(slot, 12_345)
        assert bytes(await link.transfer(0, slot, payload)) == payload
    link.release()
    assert world.receiver.ledger() == StagingLedger(total=4, free=4)


async def test_headers_that_break_the_protocol_are_refused(world):
    link = await world.link()
    other = link.leg_of("leg-2", want=1)
    payload = payload_of(0, 10)
    good = header_of(link.leg, 0, link.slots[0], payload)
    for bad in (
        replace(good, slot=4),
        replace(good, slot=-1),
        replace(good, slot=other.slots[0]),
        replace(good, leg="leg-unknown"),
        replace(good, num_bytes=SLOT_BYTES + 1),
        replace(good, num_bytes=0),
    ):
        with pytest.raises(Internal, match=r"was announced|bytes; a slot has"):
            world.receiver.announce_frame(link.name, bad)
    world.receiver.announce_frame(link.name, good)
    for bad in (good, replace(good, slot=link.slots[1]), replace(good, seq=1)):
        with pytest.raises(Internal, match=r"twice|still holds another frame"):
            world.receiver.announce_frame(link.name, bad)
    await link.send(good, payload)
    assert bytes(await link.wait(0)) == payload


async def test_sends_that_do_not_fit_are_refused(world):
    payload, big = payload_of(0, 10), bytes(SLOT_BYTES + 1)
    for number, (changes, announced, sent) in enumerate(
        (
            ({"slot": 4}, payload, payload),
            ({"slot": -1}, payload, payload),
            ({}, big, big),
            ({}, payload, payload[:-1]),
            ({"num_bytes": 0}, payload, b""),
        )
    ):
        link = await world.link(source=f"inc-{number}")  # a pair whose frames go by order ends with the first of them
        header = header_of(link.leg, 0, link.slots[0], announced)
        with pytest.raises(ValueError, match=r"no slot|do not fit|header says|must have a payload"):
            await link.sender.send(replace(header, **changes), sent)


async def test_offers_that_do_not_fit_are_refused(world):
    offer = await world.receiver.open_pair("inc-p")
    sender = world.sender()
    for bad in (
        replace(offer, transport="carrier-pigeon"),
        replace(offer, address=""),
        replace(offer, num_slots=0),
        replace(offer, slot_bytes=0),
    ):
        with pytest.raises(ValueError, match="offer"):
            await sender.connect(bad)
    await sender.connect(offer)
    with pytest.raises(ValueError, match="offered before"):
        await sender.connect(replace(offer, address=offer.address + "1"))


async def test_connecting_to_a_pair_that_ended_says_so(world):
    offer = await world.receiver.open_pair("inc-p")
    world.receiver.end_incarnation("inc-p")
    with pytest.raises(WorkerLost, match=r"gone|no receiver|no process listens"):
        await world.sender().connect(offer)


async def test_waiting_is_bounded_and_the_slot_stays_granted(world):
    link = await world.link()
    payload = payload_of(0, 1000)
    header = link.post(0, link.slots[0], payload)
    with pytest.raises(WorkerLost, match="did not arrive"):
        await link.wait(0, timeout_s=0.01)
    with pytest.raises(ValueError, match="quarantine it"):
        world.receiver.release_slot(link.name, link.slots[0])
    await link.send(header, payload)
    assert bytes(await link.wait(0)) == payload
    with pytest.raises(ValueError, match="not posted"):
        await link.wait(1)


async def test_an_ended_incarnation_takes_its_slots_along_but_not_what_is_being_read(world):
    bystander = await world.link(source="inc-other", leg="leg-o")
    link = await world.link()
    payload = payload_of(0, SLOT_BYTES)
    got = await link.transfer(0, link.slots[0], payload)
    link.post(1, link.slots[1], payload)
    waiting = asyncio.create_task(link.wait(1))
    await asyncio.sleep(0)
    world.receiver.end_incarnation("inc-p")
    with pytest.raises(WorkerLost, match="its source is gone"):
        await waiting
    assert bytes(got) == payload
    assert world.receiver.ledger() == StagingLedger(total=4, free=2, granted=2)
    assert world.receiver.allocate_slots(link.name, 1, leg="x") == []
    assert world.receiver.slots_of(link.name, link.leg) == []
    with pytest.raises(WorkerLost, match="has ended"):
        link.post(2, link.slots[0], payload)
    world.receiver.release_slot(link.name, link.slots[0])
    world.receiver.quarantine(link.name, link.slots, leg=link.leg)
    world.receiver.notify_sent(link.name, link.leg, 1)
    world.receiver.settle(link.name, link.leg)
    assert bytes(await bystander.transfer(0, bystander.slots[0], payload)) == payload
    reopened = await world.link()
    assert reopened.name != link.name
    assert bytes(await reopened.transfer(0, reopened.slots[0], payload)) == payload


async def test_idle_pairs_make_room_and_busy_ones_do_not(tmp_path):
    world = World("inproc", tmp_path, max_pairs=2)
    busy = await world.link(source="inc-a")
    await world.receiver.open_pair("inc-b")
    await world.receiver.open_pair("inc-c")
    assert world.receiver.ledger().total == 8
    world.receiver.allocate_slots((await world.receiver.open_pair("inc-c")).pair, 1, leg="leg-c")
    with pytest.raises(Overloaded, match="raise max_pairs"):
        await world.receiver.open_pair("inc-d")
    assert bytes(await busy.transfer(0, busy.slots[0], b"still here")) == b"still here"
    await world.close()


async def test_closing_with_transfers_in_flight_ends_them(world):
    link = await world.link()
    payload = payload_of(0, SLOT_BYTES)
    link.post(0, link.slots[0], payload)
    header = header_of(link.leg, 1, link.slots[1], payload)
    waiting = asyncio.create_task(link.wait(0))
    sending = asyncio.create_task(link.sender.send(header, payload))
    await asyncio.sleep(0)
    await asyncio.gather(world.receiver.close(), *(sender.close() for sender in world.senders))
    with pytest.raises(WorkerLost):
        await waiting
    (outcome,) = await asyncio.gather(sending, return_exceptions=True)
    assert outcome is None or isinstance(outcome, WorkerLost)
    assert world.receiver.ledger() == StagingLedger()
    with pytest.raises(WorkerLost):
        await link.sender.send(header, payload)
    with pytest.raises(WorkerLost, match="closed"):
        await world.receiver.open_pair("inc-p")


NUM_RESTARTS = {"gloo": 10, "ordered-gloo": 10, "tls": 10, SEGMENTS: 10}
"""Of a source; 100 where a connection is cheap."""


@pytest.mark.parametrize("world", TRANSPORTS, indirect=True)
async def test_a_source_that_restarts_again_and_again_leaves_nothing(world):
    """Every other one says nothing at its end, so its pair goes once it was idle for long enough."""

    async def restart(number):
        sender = world.make_sender()
        link = await world.link(source=f"inc-{number}", sender=sender)
        await link.transfer(0, link.slots[0], b"payload")
        link.release()
        if number % 2:
            world.receiver.end_incarnation(f"inc-{number}")
        await sender.close()

    def held():
        for _ in range(2):
            world.receiver.end_idle()
        gc.collect()
        files = [_file_size(path) for path in world.directory.iterdir()]
        threads = [one for one in threading.enumerate() if not one.name.startswith("asyncio_")]  # the loop's own pool
        return len(list(Path("/proc/self/fd").iterdir())), len(threads), sum(files)

    before = None

    def is_still():
        nonlocal before
        was, before = before, held()
        return was == before

    await restart(0)
    await eventually(is_still, "the threads of the first one have ended", poll_s=0.05)
    for number in range(1, NUM_RESTARTS.get(world.transport, 100)):
        await restart(number)

    def is_as_before():
        return all(now <= was for now, was in zip(held(), before, strict=True))

    await eventually(is_as_before, "descriptors, threads and bytes are those of the first one")  # threads end later
    assert world.receiver.ledger() == StagingLedger()


def _file_size(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:  # a background end has removed it
        return 0


async def test_gloo_on_an_address_of_another_machine_says_so(tmp_path):
    settings = TransportConfig(names=("gloo",), gloo=GlooConfig(host="192.0.2.1")).fitted(1)
    port = LocalPort(port_transports(settings), FilePages(tmp_path, is_on_device=False))
    receiver = StagingSlots("gloo", "inc-d", settings.staging, port)
    with pytest.raises(Overloaded, match=r"cannot listen on 192\.0\.2\.1"):
        await receiver.open_pair("inc-p")
    assert receiver.ledger() == StagingLedger()
    await receiver.close()
    await port.close()
