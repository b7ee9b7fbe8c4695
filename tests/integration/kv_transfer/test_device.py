"""Exported memory: who may attach, what is checked of what comes in, and when it is given back."""

import asyncio
import functools
import gc
import signal
import socket
from dataclasses import replace

import pytest

from stratos.common.errors import Internal, Overloaded, WorkerLost
from stratos.kv_transfer import registry
from stratos.kv_transfer.device import lease
from stratos.kv_transfer.device.cuda import CudaMemory
from stratos.kv_transfer.device.memory import HANDLE_BYTES, NoDeviceRoomError
from stratos.kv_transfer.device.receiver import DeviceRings
from stratos.kv_transfer.device.rings import most_rings, planned_bytes, whole_blocks
from stratos.kv_transfer.device.trial import find_fault
from stratos.kv_transfer.registry import port_transports, usable_transports
from stratos.kv_transfer.settings import StagingConfig, TransportConfig
from tests.support.kv.kv_transfer_world import SLOT_BYTES, PeerProcess, World, payload_of
from tests.support.kv.segment_memory import SEGMENTS, SegmentMemory
from tests.support.waiting import eventually

SOCKET = "kv-0123456789abcdef.sock"
GRANT = lease.DeviceGrant(num_bytes=1 << 20, device="GPU-1234", handle=bytes(range(HANDLE_BYTES)))


@pytest.fixture
async def world(tmp_path):
    (tmp_path / "staging").mkdir(mode=0o700)
    made = World(SEGMENTS, tmp_path / "staging", max_pairs=2, gloo_timeout_s=5.0)
    yield made
    await made.close()


def device_of(world):
    gc.collect()
    return SegmentMemory(world.directory.parent / "device")


async def remote(world, peer, source):
    offer = await world.receiver.open_pair(source)
    await peer.connect(offer)
    return offer


def test_what_comes_in_is_checked_to_the_last_byte():
    data = lease.encode_grant(GRANT)
    assert lease.decode_grant(data) == GRANT
    assert lease.decode_hello(lease.encode_hello(bytes(16))) == bytes(16)
    bad_names = [data[:20] + name + data[84:] for name in (bytes(64), b"\xff" * 64, b"../x".ljust(64, b"\0"))]
    for bad in (b"", data[:-1], data + b"\0", b"x" * len(data), *bad_names):
        with pytest.raises(ConnectionError):
            lease.decode_grant(bad)
    for bad in (b"", bytes(lease.HELLO_BYTES), lease.encode_hello(bytes(16))[:-1]):
        with pytest.raises(ConnectionError):
            lease.decode_hello(bad)


@pytest.mark.parametrize(
    "address", ["", "x", f"../{SOCKET}/{'0' * 32}", f"{SOCKET}/{'0' * 31}", f"/{'0' * 32}", f"{SOCKET}/{'0' * 32}/x"]
)
async def test_addresses_of_another_form_are_refused(world, address):
    offer = await world.receiver.open_pair("inc-p")
    with pytest.raises(ValueError, match=r"offer|not the address"):
        await world.sender().connect(replace(offer, address=address))


async def test_a_stranger_gets_no_handle(world):
    offer = await world.receiver.open_pair("inc-p")
    name, _ = lease.parse_address(offer.address)
    for hello in (lease.encode_hello(bytes(16)), b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(stranger, str(world.directory / name))
            await loop.sock_sendall(stranger, hello)
            stranger.shutdown(socket.SHUT_WR)
            assert await loop.sock_recv(stranger, 1024) == b""
    await world.sender().connect(offer)
    with pytest.raises(WorkerLost, match="has a sender already"):
        await world.sender().connect(offer)


async def test_a_size_that_is_not_the_offers_is_refused(world):
    offer = await world.receiver.open_pair("inc-p")
    with pytest.raises(ValueError, match="not what its offer says"):
        await world.sender().connect(replace(offer, slot_bytes=2 * SLOT_BYTES))


async def test_memory_that_a_stopped_sender_maps_is_kept_until_it_goes_on(world):
    async with PeerProcess.start(world) as zombie:
        await remote(world, zombie, "inc-1")
        zombie.signal(signal.SIGSTOP)
        await eventually(lambda: zombie.state == "T")
        world.receiver.end_incarnation("inc-1")
        await asyncio.sleep(0)
        assert (world.ring_maker.num_lingering, device_of(world).num_allocations) == (1, 1)
        zombie.signal(signal.SIGCONT)
        await eventually(lambda: world.ring_maker.num_lingering == 0)
        assert (device_of(world).num_allocations, device_of(world).freed_too_early) == (0, [])


async def test_memory_of_a_killed_sender_is_free_at_once_and_its_pair_broken(world):
    async with PeerProcess.start(world) as doomed:
        offer = await remote(world, doomed, "inc-1")
        waiting = asyncio.create_task(_wait(world, offer))
        await asyncio.sleep(0)
        doomed.signal(signal.SIGKILL)
        with pytest.raises(WorkerLost, match="broke"):
            await waiting
        assert (world.ring_maker.num_lingering, device_of(world).num_allocations) == (0, 0)
        assert (await world.receiver.open_pair("inc-1")).pair != offer.pair


async def _wait(world, offer):
    from tests.support.kv.kv_transfer_world import Link

    slots = world.receiver.allocate_slots(offer.pair, 1, leg="leg-1")
    link = Link(world, offer, None, "leg-1", slots)
    link.post(0, slots[0], payload_of(0, 100))
    return await link.wait(0)


async def test_memory_is_taken_for_as_many_rings_as_are_planned_and_no_more(world):
    staging = world.settings.staging
    planned = planned_bytes(replace(world.settings, names=("cuda_ipc",)))
    assert planned == most_rings(staging.max_pairs) * whole_blocks(staging.slot_bytes * staging.slots_per_pair)
    async with PeerProcess.start(world) as first, PeerProcess.start(world) as second:
        for zombie in (first, second):
            for number in range(2):
                await remote(world, zombie, f"inc-{number}")
            zombie.signal(signal.SIGSTOP)
            await eventually(lambda process=zombie: process.state == "T")
            for number in range(2):
                world.receiver.end_incarnation(f"inc-{number}")
        assert device_of(world).num_allocations * whole_blocks(1) == planned
        with pytest.raises(Overloaded, match="senders that do not end"):
            await world.receiver.open_pair("inc-2")
        second.signal(signal.SIGKILL)
        await eventually(lambda: world.ring_maker.num_lingering == 2)
        await world.receiver.open_pair("inc-2")
        assert device_of(world).num_allocations == 3


async def test_rings_that_are_made_at_the_same_time_count_as_well(tmp_path):
    staging = StagingConfig(slot_bytes=4096, slots_per_pair=2, max_pairs=2)
    rings = DeviceRings(staging, tmp_path / "staging", 5.0, SegmentMemory(tmp_path / "device"))
    made = await asyncio.gather(*(rings.open_ring(f"pair-{number}") for number in range(6)), return_exceptions=True)
    assert [isinstance(one, Overloaded) for one in made] == [False] * 4 + [True] * 2
    for ring in made[:4]:
        ring.close()
    await rings.close()


def test_rings_are_planned_where_the_transport_is_on():
    config = TransportConfig(names=("cuda_ipc", "shm"), staging=StagingConfig(slot_bytes=3 << 20, slots_per_pair=3))
    assert planned_bytes(config) == 2 * 8 * (10 << 20), "9 MiB in whole blocks of 2 MiB, for 8 sources, twice"
    assert planned_bytes(replace(config, staging=replace(config.staging, max_pairs=2))) == 2 * 2 * (10 << 20)
    assert planned_bytes(replace(config, names=("shm",))) == 0


async def test_what_is_read_keeps_its_memory(world):
    link = await world.link()
    payload = payload_of(0, SLOT_BYTES)
    await link.send(link.post(0, link.slots[0], payload), payload)
    span = world.rings.by_pair[link.name].payload(link.slots[0], SLOT_BYTES)
    world.receiver.end_incarnation("inc-p")
    await eventually(lambda: world.ring_maker.num_lingering == 0)
    assert device_of(world).num_allocations == 1
    assert bytes(span.to_host()) == payload
    del span
    assert device_of(world).num_allocations == 0


async def test_sockets_of_processes_that_died_are_removed(world):
    left = [world.directory / f"kv-0123456789abcdef.{suffix}" for suffix in ("sock", "new")]
    for path in left:  # the second one's process died before it gave the socket its name
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(path))
            if path.suffix == ".new":
                dead.listen()
    (world.directory / "kv-other.sock").touch()
    await world.receiver.open_pair("inc-p")
    assert not [path for path in left if path.exists()]
    (world.directory / "kv-other.sock").unlink()
    assert lease.remove_leftovers(world.directory) == 0, "the living one stays"


@pytest.mark.parametrize("num_starts", [1, lease.MAX_STARTS])
async def test_a_start_at_the_same_time_removes_no_socket_for_good(world, monkeypatch, num_starts):
    really_listen, removed = socket.socket.listen, []

    def listen(listener, *args):
        if len(removed) < num_starts:
            removed.append(lease.remove_leftovers(world.directory))  # another worker's start
        really_listen(listener, *args)

    monkeypatch.setattr(socket.socket, "listen", listen)
    if num_starts == lease.MAX_STARTS:
        with pytest.raises(Internal, match="cannot listen"):
            await world.receiver.open_pair("inc-p")
    await world.sender().connect(await world.receiver.open_pair("inc-p"))
    assert removed == [1] * num_starts


async def test_a_wake_up_without_a_reason_ends_no_lease(world, monkeypatch):
    pair = await world.sender().connect(await world.receiver.open_pair("inc-p"))
    wake_ups = []

    def recv(connection, *args):
        wake_ups.append(args)
        raise BlockingIOError

    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "recv", recv, raising=False)
        await pair.close()  # the receiver is woken, and finds nothing to read
        await eventually(lambda: len(wake_ups) > 1)
        assert device_of(world).num_allocations == 1
    await eventually(lambda: device_of(world).num_allocations == 0)


@pytest.mark.parametrize(
    ("fault", "refusal"), [(NoDeviceRoomError("full"), Overloaded), (RuntimeError("no IPC on this system"), Internal)]
)
async def test_only_a_lack_of_room_passes_with_time(world, monkeypatch, fault, refusal):
    def export(*_):
        raise fault

    monkeypatch.setattr(SegmentMemory, "export", export)
    for _ in range(2):
        with pytest.raises(refusal, match=str(fault)):
            await world.receiver.open_pair("inc-p")


async def test_a_directory_that_is_gone_is_no_lack_of_room(world):
    receiver = world.receiver
    moved = world.directory.rename(world.directory.with_name("moved"))
    with pytest.raises(Internal, match="cannot listen"):
        await receiver.open_pair("inc-p")
    moved.rename(world.directory)
    await world.sender().connect(await receiver.open_pair("inc-p"))


@pytest.mark.parametrize(
    ("fault", "refusal"), [(NoDeviceRoomError("full"), WorkerLost), (RuntimeError("no IPC on this system"), Internal)]
)
async def test_a_device_that_maps_nothing_is_told_from_memory_that_is_gone(world, monkeypatch, fault, refusal):
    def attach(*_):
        raise fault

    offer = await world.receiver.open_pair("inc-p")
    with monkeypatch.context() as patched:
        patched.setattr(SegmentMemory, "attach", attach)
        with pytest.raises(refusal, match=str(fault)):
            await world.sender().connect(offer)
    await eventually(lambda: device_of(world).num_allocations == 0, "the pair has ended with its lease")
    offer = await world.receiver.open_pair("inc-p")
    really_attach = SegmentMemory.attach

    def attach_late(*args):
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        raise RuntimeError("invalid handle")

    async def end():
        world.receiver.end_incarnation("inc-p")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(SegmentMemory, "attach", attach_late)
    with pytest.raises(WorkerLost, match="invalid handle"):
        await world.sender().connect(offer)
    monkeypatch.setattr(SegmentMemory, "attach", really_attach)
    await world.sender().connect(await world.receiver.open_pair("inc-p"))


def test_a_trial_at_start_takes_nothing_and_finds_what_cannot_work(tmp_path, monkeypatch):
    device, left = SegmentMemory(tmp_path / "device"), tmp_path / "staging" / SOCKET.replace(".sock", ".new")
    left.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(left))
    assert find_fault(device, tmp_path / "staging") == ""
    assert (device.num_allocations, list((tmp_path / "staging").iterdir())) == (0, [])
    assert "cannot listen" in find_fault(device, tmp_path / ("x" * 100) / "staging")

    def export(fault, *_):
        raise fault

    full, broken = NoDeviceRoomError("full"), RuntimeError("no IPC")
    for fault, found in ((full, ""), (broken, "the device exports no memory: no IPC")):
        monkeypatch.setattr(SegmentMemory, "export", functools.partial(export, fault))
        assert find_fault(device, tmp_path / "staging") == found


def test_a_transport_that_does_not_work_here_is_left_out_at_start(tmp_path, monkeypatch, caplog):
    def cannot(*_):
        raise RuntimeError("no IPC")

    monkeypatch.setattr(registry, "CudaMemory", lambda *_: SegmentMemory(tmp_path / "device"))
    names = ("cuda_ipc", "shm", "gloo")
    config = TransportConfig(shm_directory=tmp_path / "staging", names=names)

    def working(names, device="GPU-a"):
        return registry.working_transports(names, registry.find_faults(config, device=device))

    assert working(names) == names
    assert working(names, device="") == names[1:], "no GPU is known"
    monkeypatch.setattr(SegmentMemory, "export", cannot)
    assert working(names) == names[1:]
    assert "no KV over cuda_ipc, the next transport is taken: the device exports no memory: no IPC" in caplog.text
    with pytest.raises(ValueError, match=r"no KV transport works here, add another one \(cuda_ipc: .*no IPC\)"):
        working(names[:1])


def test_it_is_refused_where_it_cannot_run(tmp_path):
    config = TransportConfig(names=("cuda_ipc", "shm"))
    with pytest.raises(ValueError, match="needs device cuda"):
        usable_transports(config, has_tls=False)
    assert usable_transports(config, has_tls=True, has_device_pages=True) == ("cuda_ipc", "shm")
    parts = port_transports(config, device="GPU-a")
    assert [parts[name].is_on_device for name in ("cuda_ipc", "shm")] == [True, False]
    odd = replace(config, staging=StagingConfig(slot_bytes=4100))
    with pytest.raises(ValueError, match="multiple of 16"):
        usable_transports(odd, has_tls=True, has_device_pages=True)
    with pytest.raises(RuntimeError, match=r"no CUDA driver|answered"):
        CudaMemory(1 << 20, "GPU-none").export(4096)
