"""KV transfers that go wrong: damaged bytes, lost peers, stopped peers. Every fault proves that it took effect."""

import asyncio
import signal

import pytest

from stratos.common.errors import WorkerLost
from stratos.core.kv import StagingLedger
from stratos.kv_transfer.framing import checksum
from tests.support.kv.kv_faults import Fault, FaultPlan, FaultySender
from tests.support.kv.kv_transfer_world import LONG_S, SHORT_S, SLOT_BYTES, PeerProcess, World, header_of, payload_of
from tests.support.kv.segment_memory import SEGMENTS
from tests.support.waiting import eventually

TRANSPORTS = ["inproc", "shm", "gloo", "tls", "ordered-gloo", SEGMENTS]
BETWEEN_PROCESSES = ["shm", "gloo", "tls", "ordered-gloo", SEGMENTS]
IN_ORDER = ("ordered-gloo",)
POSTED_RECEIVES = ("gloo", "tls", "ordered-gloo")


def _world(transport, tmp_path, **options):
    directory = tmp_path / "staging"
    directory.mkdir(mode=0o700)
    return World(transport, directory, **options)


@pytest.fixture(params=[*TRANSPORTS, "shm in the engine's process"])
async def world(request, tmp_path):
    name, _, is_moved = request.param.partition(" in ")
    made = _world(name, tmp_path, gloo_timeout_s=2.0)
    if is_moved:
        await made.move_port()
    yield made
    await made.close()


@pytest.fixture(params=BETWEEN_PROCESSES)
async def two_processes(request, tmp_path):
    made = _world(request.param, tmp_path)
    yield made
    await made.close()


async def _faulty_link(world, plan):
    sender = FaultySender(world.make_sender(), plan)
    world.senders.append(sender)
    return await world.link(sender=sender)


async def _outcome(link, plan, seq, slot, *, num_bytes=9000, is_lost=False):
    """What a receiver makes of one frame: "intact", "damaged" or "lost"; a short wait shows the last."""
    payload = payload_of(seq, num_bytes)
    header = link.post(seq, slot, payload)
    sending = asyncio.create_task(link.send(header, payload))
    await eventually(lambda: sending.done() or plan.injected[Fault.HANG], "the frame went out, or hangs")
    sending.cancel()
    (failed,) = await asyncio.gather(sending, return_exceptions=True)
    assert failed is None or isinstance(failed, WorkerLost | asyncio.CancelledError)
    try:
        got = await link.wait(seq, timeout_s=SHORT_S if is_lost else LONG_S)
    except WorkerLost:
        return "lost"
    return "intact" if checksum(got) == header.checksum else "damaged"


async def _second_frame(world, faults, *, is_lost=False, **options):
    """Sends a healthy frame and then, through the same slot, one that suffers the fault."""
    plan = FaultPlan(faults=faults, **options)
    link = await _faulty_link(world, plan)
    slot = link.slots[0]
    assert await _outcome(link, plan, 0, slot) == "intact"
    world.receiver.recycle_slot(link.name, slot)
    return plan, link, await _outcome(link, plan, 1, slot, is_lost=is_lost)


@pytest.mark.parametrize("fault", [Fault.BIT_FLIP, Fault.TRUNCATE])
async def test_the_checksum_catches_damage_and_a_repeat_heals_it(world, fault):
    plan, link, outcome = await _second_frame(world, {1: fault})
    assert outcome == "damaged"
    assert plan.injected == {fault: 1}
    assert await _outcome(link, plan, 1, link.slots[0]) == "intact"


async def test_a_dropped_payload_is_never_taken_for_good(world):
    is_lost = world.transport in POSTED_RECEIVES
    plan, _, outcome = await _second_frame(world, {1: Fault.DROP}, is_lost=is_lost)
    # With posted receives nothing arrives; otherwise the slot still holds the frame before.
    assert outcome == ("lost" if is_lost else "damaged")
    assert plan.injected == {Fault.DROP: 1}


async def test_a_payload_that_comes_late_is_never_taken_for_good_too_early(world):
    is_lost = world.transport in POSTED_RECEIVES
    plan, link, outcome = await _second_frame(world, {1: Fault.REORDER}, is_lost=is_lost)
    assert outcome == ("lost" if is_lost else "damaged")
    assert plan.injected == {Fault.REORDER: 1}
    after = await _outcome(link, plan, 2, link.slots[1], num_bytes=100, is_lost=world.transport in IN_ORDER)
    if world.transport in IN_ORDER:  # the frame that came too late ended its pair
        assert after == "lost"
        with pytest.raises(WorkerLost):
            await link.wait(1)
        return
    assert after == "intact"
    assert bytes(await link.wait(1)) == payload_of(1, 9000)


@pytest.mark.parametrize("fault", [Fault.DELAY, Fault.DUPLICATE])
async def test_a_delay_or_a_duplicate_changes_nothing(world, fault):
    plan, _, outcome = await _second_frame(world, {1: fault}, delay_s=0.01)
    assert outcome == "intact"
    assert plan.injected == {fault: 1}


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.DIE])
async def test_a_frame_that_never_comes_is_lost_and_its_slot_is_not_granted_again(world, fault):
    plan, link, outcome = await _second_frame(world, {1: fault}, is_lost=True)
    assert outcome == "lost"
    assert plan.injected == {fault: 1}
    world.receiver.quarantine(link.name, link.slots, leg=link.leg)
    later = [world.receiver.allocate_slots(link.name, 9, leg=f"leg-{n}") for n in range(4)]
    assert not {slot for grant in later for slot in grant}.intersection(link.slots)
    world.receiver.end_incarnation("inc-p")
    assert world.receiver.ledger() == StagingLedger()


@pytest.mark.parametrize("faults", [{}, {17: Fault.BIT_FLIP}])
async def test_control_without_a_fault_that_strikes(world, faults):
    plan, _, outcome = await _second_frame(world, faults)
    assert outcome == "intact"
    assert plan.num_frames == 2
    assert not plan.injected


async def _healthy_transfer(link, peer, seq):
    payload = payload_of(seq, SLOT_BYTES - seq)
    slot = link.slots[seq % len(link.slots)]
    header = link.post(seq, slot, payload)
    assert await peer.send(header) == {"ok": True}
    link.receiver.notify_sent(link.name, link.leg, seq)
    assert bytes(await link.wait(seq)) == payload
    link.receiver.recycle_slot(link.name, slot)


class _RemoteLink:
    """A leg whose sender is another process."""

    def __init__(self, world, offer, leg):
        self.world, self.receiver, self.offer, self.name, self.leg = world, world.receiver, offer, offer.pair, leg
        self.slots = world.receiver.allocate_slots(offer.pair, 2, leg=leg)

    def post(self, seq, slot, payload):
        header = header_of(self.leg, seq, slot, payload, self.world.num_posted[self.name])
        self.world.num_posted[self.name] += 1
        self.receiver.announce_frame(self.name, header)
        return header

    async def wait(self, seq, timeout_s=LONG_S):
        return await self.world.take(self.name, self.leg, seq, timeout_s)


async def _remote_link(world, peer, source):
    offer = await world.receiver.open_pair(source)
    await peer.connect(offer)
    return _RemoteLink(world, offer, f"leg-{source}")


async def test_a_sender_killed_in_mid_transfer_harms_nobody_else(two_processes):
    world = two_processes
    async with PeerProcess.start(world, die=5) as doomed, PeerProcess.start(world) as healthy:
        link, bystander = await _remote_link(world, doomed, "inc-1"), await _remote_link(world, healthy, "inc-2")
        for seq in range(5):
            await _healthy_transfer(link, doomed, seq)
        header = link.post(5, link.slots[0], payload_of(5, SLOT_BYTES))
        waiting = asyncio.create_task(link.wait(5))
        assert await doomed.send(header) == {}
        assert await doomed.returncode() == -signal.SIGKILL
        if world.transport == "shm":
            # Nothing in shared memory breaks: a deadline, or the end of the incarnation, ends the wait.
            with pytest.raises(WorkerLost, match="did not arrive"):
                await link.wait(5, timeout_s=SHORT_S)
            world.receiver.end_incarnation("inc-1")
        with pytest.raises(WorkerLost, match="is gone" if world.transport == "shm" else "broke"):
            await waiting
        world.receiver.quarantine(link.name, link.slots, leg=link.leg)
        world.receiver.end_incarnation("inc-1")
        assert world.receiver.ledger() == StagingLedger(total=4, free=2, granted=2)
        await _healthy_transfer(bystander, healthy, 0)
        world.receiver.end_incarnation("inc-2")
    assert world.receiver.ledger() == StagingLedger()


async def test_a_stopped_sender_times_out_and_cannot_reach_new_slots_when_it_wakes(two_processes):
    world = two_processes
    async with PeerProcess.start(world) as zombie:
        link = await _remote_link(world, zombie, "inc-1")
        await _healthy_transfer(link, zombie, 0)
        old_memory = world.memory(link, link.slots[1])
        header = link.post(1, link.slots[1], payload_of(1, SLOT_BYTES))
        zombie.signal(signal.SIGSTOP)
        await _until_stopped(zombie)
        sending = asyncio.create_task(zombie.send(header))
        with pytest.raises(WorkerLost, match="did not arrive"):
            await link.wait(1, timeout_s=SHORT_S)
        assert not sending.done()
        world.receiver.quarantine(link.name, link.slots, leg=link.leg)
        world.receiver.end_incarnation("inc-1")
        fresh = await world.link(source="inc-2", leg="leg-new", want=9)
        before = [bytes(world.memory(fresh, slot)) for slot in range(4)]

        zombie.signal(signal.SIGCONT)
        answer = await sending
        # Over gloo the zombie may get its bytes into a socket that is not read, or see that it is closed.
        assert answer in ([{"ok": True}] if world.transport == "shm" else [{"ok": True}, {"error": "worker_lost"}])
        has_written = bytes(old_memory) == payload_of(1, SLOT_BYTES)
        assert has_written == (world.transport == "shm"), "shm: it took effect, in a ring that is not read any more"
        assert before == [bytes(world.memory(fresh, slot)) for slot in range(4)]
        got = await fresh.transfer(0, fresh.slots[0], payload_of(7, SLOT_BYTES))
        assert bytes(got) == payload_of(7, SLOT_BYTES)
        del old_memory


async def _until_stopped(peer):
    await eventually(lambda: peer.state == "T")


@pytest.mark.slow
@pytest.mark.parametrize("transport", POSTED_RECEIVES)
async def test_the_pair_of_a_stopped_sender_breaks_after_the_timeout(tmp_path, transport):
    world = _world(transport, tmp_path, gloo_timeout_s=2.0)
    async with PeerProcess.start(world) as stopped:
        link = await _remote_link(world, stopped, "inc-1")
        stopped.signal(signal.SIGSTOP)
        await _until_stopped(stopped)
        link.post(0, link.slots[0], payload_of(0, 100))
        with pytest.raises(WorkerLost, match=r"broke.*[Tt]imed out"):
            await link.wait(0)
        assert world.receiver.ledger() == StagingLedger()
        assert world.receiver.allocate_slots(link.name, 1, leg="leg-2") == []
        assert (await world.receiver.open_pair("inc-1")).pair != link.name
    await world.close()
