"""Transports by name, and what they need."""

import asyncio
import threading
from functools import partial

import pytest

from stratos.common.tls.contexts import TlsContexts
from stratos.common.tls.identity import PeerRole
from stratos.core.kv import StagingLedger
from stratos.kv_transfer.blocking import BlockingThreads
from stratos.kv_transfer.inproc import InprocHub
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.registry import TRANSPORTS, make_ends, staging_for
from stratos.kv_transfer.settings import TransportConfig
from tests.support.kv.memory_pages import MemoryPages
from tests.support.servers.certificates import CertificateFolder

CONFIG = TransportConfig().fitted(1)


@pytest.mark.parametrize("name", ["", "nixl", "SHM"])
def test_unknown_transports_are_refused_with_the_known_ones(name):
    for make in (make_ends, staging_for):
        with pytest.raises(ValueError, match=f"unknown KV transport '{name}'; this build has {', '.join(TRANSPORTS)}"):
            make(name, CONFIG)


def test_a_missing_hub_is_named():
    with pytest.raises(ValueError, match="hub"):
        make_ends("inproc", CONFIG)


def test_a_missing_certificate_is_named():
    with pytest.raises(ValueError, match="certificate"):
        make_ends("tls", CONFIG)


def test_a_missing_device_is_named():
    with pytest.raises(ValueError, match="needs a GPU"):
        make_ends("cuda_ipc", CONFIG)


async def test_every_known_name_makes_both_ends(tmp_path):
    settings, hub = TransportConfig(shm_directory=tmp_path / "staging").fitted(1), InprocHub()
    tls = TlsContexts(CertificateFolder(tmp_path / "tls").files(PeerRole.DECODE_WORKER))
    for name in TRANSPORTS:
        transport = PortTransport(make=partial(make_ends, name, settings, hub=hub, tls=tls, device="GPU-a"))
        port = LocalPort({name: transport}, MemoryPages())
        await port.prepare(name)
        assert StagingSlots(name, "inc-d", staging_for(name, settings), port).ledger() == StagingLedger()
        await port.close()


async def test_threads_pass_results_and_errors_and_end():
    threads = BlockingThreads("kv-test", 2)
    gate = threading.Event()
    blocked = [threads.submit(gate.wait) for _ in range(2)]
    failing = threads.submit(int, "no number")
    blocked[0].cancel()
    gate.set()
    assert await blocked[1] is True
    with pytest.raises(ValueError, match="no number"):
        await failing
    await threads.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kv-test")]
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(int)


async def test_threads_are_started_on_demand_up_to_the_limit():
    threads = BlockingThreads("kv-test", 2)
    gates = [threading.Event() for _ in range(3)]
    calls = [threads.submit(gate.wait) for gate in gates]
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("kv-test")]) == 2
    for gate in gates:
        gate.set()
    assert await asyncio.gather(*calls) == [True] * 3
    await threads.close()
