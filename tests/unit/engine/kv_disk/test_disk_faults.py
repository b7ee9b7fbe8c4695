"""Disks that are full, broken, slow or gone cost time and nothing else; so do races with what is forgotten."""

import errno
import os
import threading

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import InvalidCheckpoint
from stratos.engine.contract.results import DiskTierStatus
from stratos.engine.kv_cache.swap_costs import MeasuredRate, SwapCosts
from stratos.engine.kv_disk import disk_tier
from stratos.engine.kv_disk.block_folder import BlockFolder
from tests.unit.engine.kv_disk.conftest import FILE_BYTES, prompt_of


@pytest.fixture
def fake_clock():
    return FakeClock()


def measured(monkeypatch, *, compute, disk):
    """Tokens per second of prefill, bytes per second of the disk."""
    monkeypatch.setattr(SwapCosts, "tokens_per_s", property(lambda _: compute))
    monkeypatch.setattr(SwapCosts, "bytes_per_s", property(lambda _: 1e12))
    monkeypatch.setattr(MeasuredRate, "value", property(lambda _: disk))


def test_a_tenant_that_is_forgotten_while_a_block_is_written_leaves_no_file(world, monkeypatch):
    engine = world.start()
    write = BlockFolder.write

    def forget_and_write(*arguments):
        engine.forget_tenant("t")
        engine.verify()  # as the audit of an idle engine does
        write(*arguments)

    monkeypatch.setattr(BlockFolder, "write", forget_and_write)
    world.fill()
    status = world.reconcile()
    assert status.not_kept["forgotten"] > 0
    assert world.files == []


def test_what_is_forgotten_while_it_is_read_is_not_found(world, monkeypatch):
    world.start()
    world.fill()
    engine = world.start()
    read, seen = BlockFolder.read, []

    def forget_and_read(folder, block_hash, tenant):
        content = read(folder, block_hash, tenant)
        if not seen:
            engine.forget_blocks([block_hash])
        seen.append(block_hash)
        return content

    monkeypatch.setattr(BlockFolder, "read", forget_and_read)
    assert world.ask_again() == 0
    status = world.reconcile()
    assert status.not_loaded == {"forgotten": 1}
    assert seen[0] not in engine.disk.index


def test_a_tenant_that_is_forgotten_while_its_blocks_are_read_has_none(world, monkeypatch):
    world.start()
    world.fill()
    engine = world.start()
    num_blocks, read = world.depth(), BlockFolder.read

    def read_and_forget(*arguments):
        content = read(*arguments)
        engine.forget_tenant("t")
        return content

    monkeypatch.setattr(BlockFolder, "read", read_and_forget)
    assert world.ask_again() == 0
    status = world.reconcile()
    assert status.not_loaded == {"forgotten": num_blocks}
    assert status.num_verified == num_blocks
    assert world.files == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_no_writes_costs_requests_nothing(world, monkeypatch, fake_clock, code):
    engine = world.start(fake_clock)

    def fail(*_):
        raise OSError(code, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        world.fill()
    status = world.reconcile()
    assert status.not_kept == {"error": status.num_noted}
    world.fill(kinds=[11, 12, 13])
    assert engine.status().disk.num_written == 0  # it is left alone for a while
    fake_clock.advance(disk_tier.PAUSE_S + 1)
    world.fill(kinds=[14, 15, 16])
    assert world.reconcile().num_written > 0


def test_a_disk_that_cannot_be_read_is_a_miss(world, monkeypatch):
    world.start()
    world.fill()
    world.start()
    num_blocks = world.depth()

    def fail(*_):
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", fail)
        assert world.ask_again() == 0
    assert world.engine.status().disk.not_loaded == {"error": 1, "behind": num_blocks - 1}


def test_a_file_that_went_is_a_miss(world):
    world.start()
    world.fill()
    world.start()
    num_blocks = world.depth()
    for path in world.files:
        path.unlink()
    assert world.ask_again() == 0
    assert world.engine.status().disk.not_loaded == {"error": 1, "behind": num_blocks - 1}


def test_a_block_that_changed_in_host_memory_is_not_written(world):
    engine = world.start()
    engine.runner.read_slot = lambda _: None
    world.fill()
    status = world.reconcile()
    assert status.not_kept["damaged"] == status.num_noted > 0


@pytest.mark.parametrize(("disk", "is_loaded"), [(1e9, True), (1.0, False)])
def test_a_hit_that_takes_longer_than_computing_is_computed(world, fake_clock, monkeypatch, disk, is_loaded):
    world.start()
    world.fill()
    engine = world.start(fake_clock, costs=True)
    measured(monkeypatch, compute=1000.0, disk=disk)
    num_blocks = world.depth()
    assert world.ask_again() == (4 * num_blocks if is_loaded else 0)
    assert engine.status().disk.not_loaded == ({} if is_loaded else {"slow": num_blocks})


def test_a_disk_that_turns_slow_while_it_is_read_loads_no_more(world, fake_clock, monkeypatch):
    world.start()
    world.fill()
    engine = world.start(fake_clock, costs=True)
    measured(monkeypatch, compute=1000.0, disk=1e9)
    read = BlockFolder.read

    def read_slowly(*arguments):
        fake_clock.advance(0.009)  # computing a block takes 0.004
        return read(*arguments)

    monkeypatch.setattr(BlockFolder, "read", read_slowly)
    num_blocks = world.depth()
    num_loaded = 4 * num_blocks // 9 + 1  # the first that ends too late is the last
    assert world.ask_again() == 4 * num_loaded < 4 * num_blocks
    assert engine.status().disk.not_loaded == {"slow": num_blocks - num_loaded}


def test_a_slow_disk_takes_no_blocks(world, fake_clock, monkeypatch):
    engine = world.start(fake_clock, costs=True)
    measured(monkeypatch, compute=1000.0, disk=1.0)
    world.fill(kinds=[1, 2, 3])
    status = engine.status().disk
    assert status.not_kept == {"slow": status.num_noted}
    assert status.num_noted > 0


def test_two_requests_with_one_prefix_read_it_once(world, monkeypatch):
    world.start()
    world.fill()
    engine = world.start()
    read, is_reading, may_go_on = BlockFolder.read, threading.Event(), threading.Event()

    def read_when_told(*arguments):
        is_reading.set()
        assert may_go_on.wait(10)
        return read(*arguments)

    monkeypatch.setattr(BlockFolder, "read", read_when_told)
    request, counts = world.request(prompt_of(1), "first"), []

    def load():
        counts.append(engine.load_blocks(request.prompt_ids, request.terms))

    first, second = threading.Thread(target=load), threading.Thread(target=load)
    first.start()
    assert is_reading.wait(10)
    second.start()
    may_go_on.set()
    first.join()
    second.join()
    assert sorted(counts) == [0, world.depth()]
    assert engine.status().disk.num_hits == world.depth()


def test_a_directory_belongs_to_one_process(world):
    world.start()
    with pytest.raises(InvalidCheckpoint, match="another process"):
        disk_tier.BlockFolder(world.folder, bytes(32), FILE_BYTES)


def test_a_directory_that_cannot_be_used_is_said_at_the_start(world, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidCheckpoint, match="cannot use"):
        world.start(directory=tmp_path / "file" / "kv")
    world.engine = None
    with pytest.raises(InvalidCheckpoint, match="holds no block"):
        world.start(max_bytes=1)
    world.engine = None


@pytest.mark.parametrize("change", [{"max_bytes": 0}, {"num_host_blocks": 0}])
def test_off_it_touches_no_file(world, change):
    engine = world.start(**change)
    assert engine.disk is None
    assert engine.status().disk == DiskTierStatus()
    assert not world.folder.exists()


def test_files_leave_the_page_cache(world, monkeypatch):
    told, synced = [], []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *arguments: told.append((fd, *arguments)))
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(fd))
    world.start()
    world.fill()
    num_written = world.engine.status().disk.num_written
    assert told == [(fd, 0, 0, os.POSIX_FADV_DONTNEED) for fd in synced]
    assert len(told) == num_written
    world.start()
    world.ask_again()
    assert len(told) > num_written


def test_an_engine_that_computes_wrong_leaves_nothing_on_disk(world, monkeypatch):
    """Neither what is written when that is found, nor what it would write afterwards."""
    engine = world.start()
    world.fill()
    assert world.files
    write = BlockFolder.write

    def distrust_and_write(*arguments):
        engine.distrust()
        write(*arguments)

    monkeypatch.setattr(BlockFolder, "write", distrust_and_write)
    world.fill(kinds=[11, 12, 13])
    assert world.files == []
    assert world.reconcile().not_kept["forgotten"] == 1
    world.fill(kinds=[14, 15])
    assert world.files == []
    world.start()
    assert world.reconcile().num_found == 0


def test_what_is_read_while_an_engine_is_found_to_compute_wrong_is_not_loaded(world, monkeypatch):
    world.start()
    world.fill()
    engine = world.start()
    read = BlockFolder.read

    def read_and_distrust(*arguments):
        content = read(*arguments)
        engine.distrust()
        return content

    monkeypatch.setattr(BlockFolder, "read", read_and_distrust)
    assert world.ask_again() == 0
    assert world.reconcile().num_loaded == 0
    assert world.files == []
