"""The disk tier over the fake runner: what was evicted comes back bit for bit, and nothing wrong ever does."""

import errno
import itertools
import os
import random
import threading
from dataclasses import replace

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import InvalidCheckpoint
from stratos.core.block_hash import block_hashes, chain_root
from stratos.engine.contract.results import DiskTierStatus
from stratos.engine.kv_disk import disk_tier
from stratos.engine.kv_disk.block_folder import tenant_folder
from tests.support.worlds.engine_driver import assert_at_rest, expected
from tests.unit.engine.kv_disk.conftest import FILE_BYTES, KEY, OTHER_KEY, prompt_of

KINDS = range(1, 6)


@pytest.fixture
def fake_clock():
    return FakeClock()


def fill(world, kinds=KINDS, **terms):
    """Prompts of 5 full blocks each, over a device of 8 blocks."""
    for kind in kinds:
        world.ask(prompt_of(kind), f"fill{kind}-{terms}", **terms)


def reconcile(world):
    """Files are what the ledger says, block by block and byte by byte."""
    status = world.engine.status().disk
    status.check_laws()
    assert len(world.files) == status.blocks.stored
    assert {path.stat().st_size for path in world.files} <= {status.block_bytes}
    assert not list(world.folder.rglob("*.new"))
    return status


def ask_again(world, kind=1, **terms):
    """The cached tokens of a prompt that was there before; its tokens must be right in any case."""
    run = world.ask(prompt_of(kind), f"again{kind}", **terms)
    assert run.tokens == {(f"again{kind}", 0): expected(prompt_of(kind), 3)}
    assert_at_rest(world.engine)
    return run.stats[f"again{kind}"].num_cached_tokens


def depth(world, kind=1, tenant="t"):
    """Blocks of a prompt, from the first on, that lie on disk; with overlap some are not copied in time."""
    request = world.request(prompt_of(kind), "any", tenant=tenant)
    root = chain_root(world.engine.info.identity, "", request.terms.cache_salt)
    hashes = block_hashes(root, request.prompt_ids[:-1], world.engine.info.geometry.block_size)
    found = len(list(itertools.takewhile(world.engine.disk.index.__contains__, hashes)))
    assert found >= 2
    return found


def damage(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_blocks_that_both_tiers_gave_up_come_back(world):
    world.start()
    fill(world, kinds=range(1, 9))
    before = reconcile(world)
    assert before.num_written > 12
    assert ask_again(world) == 4 * depth(world)
    after = reconcile(world)
    assert after.num_loaded == after.num_hits == after.num_verified > 0


def test_another_process_finds_what_the_one_before_left(world):
    world.start()
    fill(world)
    num_stored = reconcile(world).blocks.stored
    world.start()
    assert reconcile(world).num_found == num_stored
    assert ask_again(world) == 4 * depth(world)
    assert reconcile(world).num_loaded == depth(world)


def test_what_was_used_last_is_known_after_a_restart(world):
    world.start()
    fill(world)
    world.start()
    ask_again(world)
    world.start(max_bytes=2 * FILE_BYTES)
    world.engine.disk.write()
    assert sum(reconcile(world).dropped.values()) > 0
    assert ask_again(world) == 4 * depth(world) == 8


@pytest.mark.parametrize("seed", range(8))
def test_a_flipped_bit_of_any_file_is_computed_again_and_counted(world, seed):
    world.start()
    fill(world)
    bit = random.Random(seed).randrange(8 * FILE_BYTES)
    for path in world.files:
        damage(path, bit)
    world.start()
    num_blocks = depth(world)
    assert ask_again(world) == 0
    status = world.engine.status().disk
    wrong_key = 8 * 72 <= bit < 8 * 88
    assert status.not_loaded == {"other_key" if wrong_key else "damaged": 1, "behind": num_blocks - 1}
    assert sum(status.dropped.values()) == 1


def test_every_bit_of_a_file_counts(world):
    world.start()
    fill(world)
    seal, layout = disk_tier.open_block, world.engine.disk._layout
    path = world.files[0]
    sound, name = path.read_bytes(), bytes.fromhex(path.stem)
    assert seal(KEY, layout, name, sound)
    for bit in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((disk_tier.DamagedBlock, disk_tier.OtherKey)):
            seal(KEY, layout, name, bytes(damaged))


def test_a_file_under_the_name_of_another_block_is_not_loaded(world):
    world.start()
    fill(world)
    contents = [path.read_bytes() for path in world.files]
    for path, content in zip(world.files, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    world.start()
    assert ask_again(world) == 0
    assert world.engine.status().disk.not_loaded["damaged"] == 1


@pytest.mark.parametrize("cut", [0, 1, FILE_BYTES - 1])
def test_a_cut_file_is_removed_at_the_start(world, cut):
    world.start()
    fill(world)
    for path in world.files:
        path.write_bytes(path.read_bytes()[:cut])
    world.start()
    assert world.engine.status().disk.num_found == 0
    assert world.files == []
    assert ask_again(world) == 0


@pytest.mark.parametrize("change", [{"model_digest": "another"}, {"block_size": 8}])
def test_blocks_of_another_layout_are_not_used_and_go(world, change):
    world.start()
    fill(world)
    world.start(**change)
    assert world.engine.status().disk.num_found == 0
    world.engine.disk.write()
    assert world.files == []


def test_numerics_and_page_layout_are_part_of_the_identity(world):
    info = world.start().info
    others = [
        replace(info, identity=replace(info.identity, numerics_id="another")),
        replace(info, page_layout="another"),
        replace(info, geometry=replace(info.geometry, num_layers=2)),
    ]
    assert len({disk_tier.layout_digest(one) for one in [info, *others]}) == 4


def test_without_a_key_nothing_is_written(world):
    world.start()
    fill(world, key=b"")
    status = reconcile(world)
    assert status.not_kept == {"no_key": status.num_noted}
    assert status.num_noted > 0
    assert world.files == []


def test_under_another_key_blocks_are_noise_and_go(world):
    world.start()
    fill(world)
    world.start()
    num_blocks = depth(world)
    assert ask_again(world, key=OTHER_KEY) == 0
    status = world.engine.status().disk
    assert status.not_loaded == {"other_key": 1, "behind": num_blocks - 1}
    assert status.dropped == {"other_key": 1}


def test_no_file_holds_a_byte_of_kv_in_the_clear(world):
    world.start()
    fill(world)
    for path in world.files:
        assert sum(path.read_bytes().count(b"\0") for path in world.files) < FILE_BYTES * len(world.files) / 10
        assert path.stat().st_mode & 0o777 == 0o600


def test_one_tenant_does_not_find_the_blocks_of_another(world):
    world.start()
    fill(world, tenant="one")
    world.start()
    assert ask_again(world, tenant="two") == 0
    assert world.engine.status().disk.num_hits == 0


def test_a_tenant_above_its_quota_pushes_out_its_own_blocks_alone(world):
    world.start(max_bytes=20 * FILE_BYTES, max_tenant_ratio=0.5)
    fill(world, tenant="small", kinds=[1, 2, 3])
    index = world.engine.disk.index
    num_small = index.num_of(tenant_folder("small"))
    fill(world, tenant="big", kinds=range(3, 12))
    world.engine.disk.write()
    status = reconcile(world)
    assert index.num_of(tenant_folder("small")) >= num_small > 0
    assert index.num_of(tenant_folder("big")) == 10
    assert set(status.dropped) == {"quota"}


def test_the_bound_of_all_tenants_holds(world):
    world.start(max_bytes=10 * FILE_BYTES)
    for number in range(4):
        fill(world, tenant=f"t{number}", kinds=[1, 2])
    world.engine.disk.write()
    status = reconcile(world)
    assert status.blocks.stored == status.blocks.total == 10
    assert status.dropped["pressure"] > 0


def test_a_forgotten_tenant_has_no_file_and_no_hit(world):
    world.start()
    fill(world, tenant="one")
    fill(world, tenant="two", kinds=[7, 8, 9])
    assert world.engine.forget_tenant("one") > 0
    world.engine.disk.write()
    status = reconcile(world)
    assert status.blocks.stored == world.engine.disk.index.num_of(tenant_folder("two")) > 0
    assert not (world.files[0].parent.parent / tenant_folder("one")).exists()
    assert ask_again(world, tenant="one") == 0


def test_a_tenant_that_is_forgotten_while_a_block_is_written_leaves_no_file(world, monkeypatch):
    engine = world.start()
    write = engine.disk._folder.write

    def forget_and_write(*arguments):
        engine.forget_tenant("t")
        write(*arguments)

    monkeypatch.setattr(engine.disk._folder, "write", forget_and_write)
    fill(world)
    status = reconcile(world)
    assert status.not_kept["forgotten"] > 0
    assert world.files == []


def test_what_is_forgotten_while_it_is_read_is_not_found(world, monkeypatch):
    world.start()
    fill(world)
    engine = world.start()
    read, seen = engine.disk._folder.read, []

    def forget_and_read(block_hash, folder):
        content = read(block_hash, folder)
        if not seen:
            engine.forget_blocks([block_hash])
        seen.append(block_hash)
        return content

    monkeypatch.setattr(engine.disk._folder, "read", forget_and_read)
    assert ask_again(world) == 0
    status = reconcile(world)
    assert status.not_loaded == {"forgotten": 1}
    assert seen[0] not in engine.disk.index


def test_invalidated_blocks_leave_the_disk_as_well(world):
    world.start()
    fill(world)
    hashes = [bytes.fromhex(path.stem) for path in world.files]
    assert world.engine.forget_blocks(hashes) == len(hashes)
    world.engine.disk.write()
    assert reconcile(world).dropped == {"forgotten": len(hashes)}
    assert world.files == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_no_writes_costs_requests_nothing(world, monkeypatch, fake_clock, code):
    engine = world.start(fake_clock)

    def fail(*_):
        raise OSError(code, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        fill(world)
    status = reconcile(world)
    assert status.not_kept == {"error": status.num_noted}
    fill(world, kinds=[11, 12, 13])
    assert engine.status().disk.num_written == 0  # it is left alone for a while
    fake_clock.advance(disk_tier.PAUSE_S + 1)
    fill(world, kinds=[14, 15, 16])
    assert reconcile(world).num_written > 0


def test_a_disk_that_cannot_be_read_is_a_miss(world, monkeypatch):
    world.start()
    fill(world)
    world.start()
    num_blocks = depth(world)

    def fail(*_):
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", fail)
        assert ask_again(world) == 0
    assert world.engine.status().disk.not_loaded == {"error": 1, "behind": num_blocks - 1}


def test_a_file_that_went_is_a_miss(world):
    world.start()
    fill(world)
    world.start()
    num_blocks = depth(world)
    for path in world.files:
        path.unlink()
    assert ask_again(world) == 0
    assert world.engine.status().disk.not_loaded == {"error": 1, "behind": num_blocks - 1}


def test_a_block_that_changed_in_host_memory_is_not_written(world):
    engine = world.start()
    engine.runner.read_slot = lambda _: None
    fill(world)
    status = reconcile(world)
    assert status.not_kept["damaged"] == status.num_noted > 0


def measured(engine, *, compute, disk):
    """Tokens per second of prefill, bytes per second of the disk."""
    engine._kv.tier.costs.observe_prefill(1000, 1000, 1000 / compute)
    engine.disk._rate.observe(disk)


@pytest.mark.parametrize(("disk", "is_loaded"), [(1e9, True), (1.0, False)])
def test_a_hit_that_takes_longer_than_computing_is_computed(world, fake_clock, disk, is_loaded):
    world.start()
    fill(world)
    engine = world.start(fake_clock, costs=True)
    measured(engine, compute=1000.0, disk=disk)
    num_blocks = depth(world)
    assert ask_again(world) == (4 * num_blocks if is_loaded else 0)
    assert engine.status().disk.not_loaded == ({} if is_loaded else {"slow": num_blocks})


def test_a_disk_that_turns_slow_while_it_is_read_loads_no_more(world, fake_clock, monkeypatch):
    world.start()
    fill(world)
    engine = world.start(fake_clock, costs=True)
    measured(engine, compute=1000.0, disk=1e9)
    read = engine.disk._folder.read

    def read_slowly(*arguments):
        fake_clock.advance(0.009)  # computing a block takes 0.004
        return read(*arguments)

    monkeypatch.setattr(engine.disk._folder, "read", read_slowly)
    num_blocks = depth(world)
    num_loaded = 4 * num_blocks // 9 + 1  # the first that ends too late is the last
    assert ask_again(world) == 4 * num_loaded < 4 * num_blocks
    assert engine.status().disk.not_loaded == {"slow": num_blocks - num_loaded}


def test_a_slow_disk_takes_no_blocks(world, fake_clock):
    engine = world.start(fake_clock, costs=True)
    measured(engine, compute=1000.0, disk=1.0)
    fill(world, kinds=[1, 2, 3])
    status = engine.status().disk
    assert status.not_kept == {"slow": status.num_noted}
    assert status.num_noted > 0


def test_two_requests_with_one_prefix_read_it_once(world, monkeypatch):
    world.start()
    fill(world)
    engine = world.start()
    read, is_reading, may_go_on = engine.disk._folder.read, threading.Event(), threading.Event()

    def read_when_told(*arguments):
        is_reading.set()
        assert may_go_on.wait(10)
        return read(*arguments)

    monkeypatch.setattr(engine.disk._folder, "read", read_when_told)
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
    assert sorted(counts) == [0, depth(world)]
    assert engine.status().disk.num_hits == depth(world)


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
    fill(world)
    num_written = world.engine.status().disk.num_written
    assert told == [(fd, 0, 0, os.POSIX_FADV_DONTNEED) for fd in synced]
    assert len(told) == num_written
    world.start()
    ask_again(world)
    assert len(told) > num_written
