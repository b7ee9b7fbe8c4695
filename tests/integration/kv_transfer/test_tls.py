"""What TLS adds to the transfer of KV: who may send, what the network sees, keys and certificates that change."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stratos.common.errors import Overloaded, WorkerLost
from stratos.common.tls.contexts import TlsContexts
from stratos.common.tls.identity import PeerRole
from stratos.core.kv import StagingLedger
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.registry import make_ends, usable_transports
from stratos.kv_transfer.settings import TlsTransportConfig, TransportConfig
from stratos.pki.renewal import RenewalWishes
from tests.support.kv.kv_transfer_world import SLOT_BYTES, World, payload_of
from tests.support.servers.certificates import CertificateFolder


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "staging").mkdir(mode=0o700)
    made = World("tls", tmp_path / "staging")
    yield made
    await made.close()


class Relay:
    """Passes connections on to an address and keeps what passed."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self.seen = bytearray()
        self.num_connections = 0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        async with server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        onward = await asyncio.open_connection(self._host, self._port)
        await asyncio.gather(self._copy(reader, onward[1]), self._copy(onward[0], writer), return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.seen += data
            writer.write(data)
            await writer.drain()
        writer.close()


async def _exchange(world: World, link, first: int, count: int) -> None:
    for seq in range(first, first + count):
        slot = link.slots[seq % 2]
        assert bytes(await link.transfer(seq, slot, payload_of(seq, SLOT_BYTES))) == payload_of(seq, SLOT_BYTES)
        world.receiver.recycle_slot(link.name, slot)


async def test_the_network_sees_no_byte_of_a_payload(world: World) -> None:
    offer = await world.receiver.open_pair("inc-p")
    place, _, secret = offer.address.rpartition("/")
    relay = Relay(place)
    async with relay.run() as address:
        pair = await world.sender().connect(dataclasses.replace(offer, address=f"{address}/{secret}"))
        link = await world.link(sender=_Connected(pair))
        await _exchange(world, link, 0, 4)
        await pair.close()
    assert len(relay.seen) > 4 * SLOT_BYTES, "everything passed the relay"
    for seq in range(4):
        payload = payload_of(seq, SLOT_BYTES)
        assert not any(payload[at : at + 8] in relay.seen for at in range(0, SLOT_BYTES, 4096))
    assert bytes.fromhex(secret) not in relay.seen


class _Connected:
    """A sender whose pair is there already."""

    def __init__(self, pair) -> None:
        self._pair = pair

    async def connect(self, offer):
        return self._pair


@pytest.mark.parametrize("role", [role for role in PeerRole if "worker" not in role])
async def test_a_certificate_of_another_role_opens_no_pair(world: World, role: PeerRole) -> None:
    offer = await world.receiver.open_pair("inc-p")
    intruder = world.make_sender(role)
    with pytest.raises(WorkerLost, match="refused our certificate"):
        await intruder.connect(offer)
    await intruder.close()
    link = await world.link()
    await _exchange(world, link, 0, 2)


async def test_workers_of_another_platform_and_strangers_open_no_pair(world: World, tmp_path: Path) -> None:
    stranger = CertificateFolder(tmp_path / "other").files(PeerRole.PREFILL_WORKER)
    stranger_ends = make_ends("tls", world.settings, tls=TlsContexts(stranger))
    offer = await world.receiver.open_pair("inc-p")
    with pytest.raises(WorkerLost, match="certificate verify failed"):
        await stranger_ends.connect(offer)
    host, _, port = offer.address.partition("/")[0].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(ConnectionError):
        await reader.read(100)
    writer.close()
    without_certificate = ssl.create_default_context()
    without_certificate.check_hostname, without_certificate.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(host, int(port), ssl=without_certificate)
    with pytest.raises(ssl.SSLError):
        await reader.read(100)
    writer.close()
    guess = dataclasses.replace(offer, address=f"{host}:{port}/{'00' * 16}")
    with pytest.raises(WorkerLost, match="pair is gone"):
        await world.sender().connect(guess)
    await _exchange(world, await world.link(), 0, 2)


@pytest.mark.parametrize("place", ["127.0.0.1:99999", "a..b:80", "127.0.0.1:8\u00b2"])
async def test_an_address_that_is_none_leaves_no_thread(world: World, place: str) -> None:
    offer = await world.receiver.open_pair("inc-p")
    malformed = dataclasses.replace(offer, address=f"{place}/{'00' * 16}")
    with pytest.raises(ValueError, match=r"not host:port|label"):
        await world.sender().connect(malformed)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("kv-tls to")]


async def test_a_receiver_that_is_no_worker_gets_no_payload(world: World) -> None:
    ends = make_ends("tls", world.settings, tls=world.contexts(PeerRole.ROUTER))
    port = LocalPort({"tls": PortTransport(make=lambda: ends)}, world.pages)
    impostor = StagingSlots("tls", "inc-x", world.settings.staging, port)
    offer = await impostor.open_pair("inc-p")
    with pytest.raises(WorkerLost, match="must be a worker"):
        await world.sender().connect(offer)
    await impostor.close()
    await port.close()


async def test_a_pair_lives_on_through_new_keys_certificates_and_cas(world: World) -> None:
    world.options["tls"] = {"rekey_bytes": 3 * SLOT_BYTES}
    offer = await world.receiver.open_pair("inc-p")
    place, _, secret = offer.address.rpartition("/")
    relay = Relay(place)
    async with relay.run() as address:
        pair = await world.sender().connect(dataclasses.replace(offer, address=f"{address}/{secret}"))
        link = await world.link(sender=_Connected(pair))
        await _exchange(world, link, 0, 7)
        assert relay.num_connections == 3, "one more after every three slots"
        for number, wishes in enumerate((RenewalWishes(rotate_ca=True), None, None)):
            assert world.certificates
            world.certificates.run(wishes)
            await _exchange(world, link, 7 + number, 1)
        assert relay.num_connections == 6, "one more for each change of the files"
        await pair.close()


async def test_an_unusable_certificate_of_the_sender_leaves_the_pair_as_it_is(world: World) -> None:
    link = await world.link()
    await _exchange(world, link, 0, 1)
    assert world.certificates
    key = world.certificates.path / PeerRole.PREFILL_WORKER / "tls.key"
    key.write_text("half a k")
    await _exchange(world, link, 1, 3)


async def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    world = World("tls", tmp_path / "staging")
    settings = TransportConfig(tls=TlsTransportConfig(host="192.0.2.1")).fitted(1)
    ends = make_ends("tls", settings, tls=world.contexts(PeerRole.DECODE_WORKER))
    port = LocalPort({"tls": PortTransport(make=lambda: ends)}, world.pages)
    receiver = StagingSlots("tls", "inc-d", settings.staging, port)
    with pytest.raises(Overloaded, match=r"cannot listen on 192\.0\.2\.1"):
        await receiver.open_pair("inc-p")
    assert receiver.ledger() == StagingLedger()
    await receiver.close()
    await port.close()
    await world.close()


def test_which_transports_a_process_may_use() -> None:
    default = TransportConfig()
    assert usable_transports(default, has_tls=False) == ("shm", "gloo")
    assert usable_transports(default, has_tls=True) == ("shm", "tls")
    risk = TransportConfig(allow_unencrypted_gloo=True)
    assert usable_transports(risk, has_tls=True) == ("shm", "tls", "gloo")
    with pytest.raises(ValueError, match="allow_unencrypted_gloo"):
        usable_transports(TransportConfig(names=("gloo",)), has_tls=True)
    with pytest.raises(ValueError, match="needs mTLS"):
        usable_transports(TransportConfig(names=("tls",)), has_tls=False)
