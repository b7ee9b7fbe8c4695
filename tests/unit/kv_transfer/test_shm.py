"""Files of the shm transport: private, allocated up front, gone when no process needs them."""

import os
import resource
import signal
import stat
from dataclasses import replace

import pytest

from stratos.common.errors import Overloaded, WorkerLost
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.private_directory import private_directory
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.shm import shm_ends
from tests.support.kv.memory_pages import MemoryPages

CONFIG = StagingConfig(slot_bytes=8192, slots_per_pair=2)


def port_in(directory, config=CONFIG):
    return LocalPort({"shm": PortTransport(make=lambda: shm_ends(config, directory))}, MemoryPages())


def receiver_in(directory, config=CONFIG):
    return StagingSlots("shm", "inc-d", config, port_in(directory, config))


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "staging"


async def test_a_staging_file_is_private_and_fully_allocated_and_unlinked_once_attached(directory):
    receiver, sender = receiver_in(directory), port_in(directory)
    offer = await receiver.open_pair("inc-p")
    found = (directory / offer.address).stat()
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert found.st_size == 2 * 8192
    assert found.st_blocks * 512 >= found.st_size
    await sender.connect(offer)
    assert list(directory.iterdir()) == []
    with pytest.raises(WorkerLost, match="was attached to"):
        await port_in(directory).connect(offer)
    await sender.close()
    await receiver.close()


async def test_closing_removes_a_file_that_nobody_attached(directory):
    receiver = receiver_in(directory)
    await receiver.open_pair("inc-p")
    await receiver.close()
    assert list(directory.iterdir()) == []


async def test_no_space_is_an_error_that_says_what_to_do(directory, monkeypatch):
    def full(fd, offset, length):
        raise OSError(28, "No space left on device")

    receiver = receiver_in(directory)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Overloaded, match=r"no room for 0\.0 MiB of KV staging in .* lower slot_bytes"):
        await receiver.open_pair("inc-p")
    assert list(directory.iterdir()) == []
    monkeypatch.undo()
    assert (await receiver.open_pair("inc-p")).num_slots == 2
    await receiver.close()


async def test_a_real_limit_of_the_system_shows_at_creation(directory):
    """The kernel refuses the allocation itself: no SIGBUS later."""
    receiver = receiver_in(directory, replace(CONFIG, slot_bytes=1 << 20))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(Overloaded, match="no room"):
            await receiver.open_pair("inc-p")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(directory.iterdir()) == []
    await receiver.close()


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_directory_that_others_can_enter_is_refused(directory, mode):
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(ValueError, match="mode 0700"):
        shm_ends(CONFIG, directory)


def test_a_link_to_a_directory_is_refused(directory, tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    directory.symlink_to(tmp_path / "real")
    with pytest.raises(ValueError, match="mode 0700"):
        private_directory(directory)


@pytest.mark.parametrize("address", ["../secret", "/etc/passwd", "kv-1.ring", "kv-" + "0" * 32 + ".ring/../x"])
async def test_an_address_cannot_lead_out_of_the_directory(directory, address):
    receiver, sender = receiver_in(directory), port_in(directory)
    offer = await receiver.open_pair("inc-p")
    with pytest.raises(ValueError, match="not the name of a staging file"):
        await sender.connect(replace(offer, address=address))
    await receiver.close()


async def test_files_that_are_not_what_the_offer_says_are_refused(directory):
    receiver, sender = receiver_in(directory), port_in(directory)
    offer = await receiver.open_pair("inc-p")
    with pytest.raises(ValueError, match="its offer says"):
        await sender.connect(replace(offer, num_slots=3))
    link = "kv-" + "1" * 32 + ".ring"
    (directory / link).symlink_to(directory / offer.address)
    with pytest.raises(WorkerLost, match="symbolic link"):
        await sender.connect(replace(offer, address=link))
    (directory / link).unlink()
    (directory / offer.address).chmod(0o644)
    with pytest.raises(ValueError, match="not a private file"):
        await sender.connect(offer)
    (directory / offer.address).chmod(0o600)
    await sender.connect(offer)
    await sender.close()
    await receiver.close()
