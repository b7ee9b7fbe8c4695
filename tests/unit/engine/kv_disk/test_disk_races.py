"""Races of the disk tier with what is written again or forgotten: each block is counted once, and no file is lost."""

import errno
import os

from stratos.common.clock import FakeClock
from stratos.engine.kv_disk import disk_index
from stratos.engine.kv_disk.block_folder import BlockFolder, tenant_folder
from tests.unit.engine.kv_disk.conftest import prompt_of


def test_a_block_that_comes_again_while_it_is_written_is_written_once(world, monkeypatch):
    engine, seen = world.start(), []
    write = BlockFolder.write

    def note_and_write(folder, block_hash, tenant, data):
        if not seen:
            engine.disk.note(block_hash)  # host memory gave it up, and has it again by now
        seen.append(block_hash)
        write(folder, block_hash, tenant, data)

    monkeypatch.setattr(BlockFolder, "write", note_and_write)
    world.fill()
    assert world.reconcile().num_written == len(set(seen)) == len(seen)


def test_a_tenant_that_is_forgotten_after_memory_gave_a_block_up_leaves_no_file(world, monkeypatch):
    engine, seen = world.start(), []
    write = BlockFolder.write

    def give_up_and_write(folder, block_hash, tenant, data):
        if not seen:
            seen.append(block_hash)
            kv = engine.disk.kv
            kv.blocks.forget([block_hash])
            kv.tier.pool.forget([block_hash])
            kv.owners.take("t")  # each new block does so with old ones
            engine.forget_tenant("t")
        write(folder, block_hash, tenant, data)

    monkeypatch.setattr(BlockFolder, "write", give_up_and_write)
    world.fill(kinds=[1, 2])
    world.fill(kinds=[3], key=b"")
    assert seen[0] not in engine.disk.index
    world.reconcile()


def test_a_tenant_that_asks_again_while_it_is_forgotten_finds_nothing_of_before(world, monkeypatch):
    world.start()
    world.fill()
    engine = world.start()
    read = BlockFolder.read

    def read_and_forget(*arguments):
        content = read(*arguments)
        engine.forget_tenant("t")
        other = world.request(prompt_of(77), "late")
        engine.load_blocks(other.prompt_ids, other.terms)  # of a gateway that does not know yet
        return content

    monkeypatch.setattr(BlockFolder, "read", read_and_forget)
    assert world.ask_again() == 0
    assert world.reconcile().num_loaded == 0


def test_a_disk_that_fails_is_tried_once_and_then_left_alone(world, monkeypatch):
    engine = world.start(FakeClock())
    tries = []

    def fail(*_):
        tries.append(1)
        raise OSError(errno.ENOSPC, "no")

    monkeypatch.setattr(os, "write", fail)
    monkeypatch.setattr(type(engine.disk), "write", lambda _: None)
    world.fill()  # all of it waits
    monkeypatch.undo()
    monkeypatch.setattr(os, "write", fail)
    assert engine.status().disk.num_waiting > 1
    engine.disk.write()
    assert len(tries) == 1
    status = world.reconcile()
    assert status.not_kept["error"] + status.not_kept.get("busy", 0) == status.num_noted


def test_other_things_in_the_directory_stay(world, tmp_path):
    foreign = tmp_path / "kv" / "lost+found" / "file"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("precious")
    world.start()
    world.fill()
    world.start(model_digest="another")
    world.engine.disk.write()
    assert world.files == []
    assert foreign.read_text() == "precious"


def test_a_load_does_not_push_out_the_beginning_of_its_own_prompt(world):
    """Host memory gives up the end of a prompt first, so its beginning is there when the rest is to be read."""
    engine = world.start()
    world.fill(kinds=range(1, 9))
    pool, device, hashes = engine.disk.kv.tier.pool, engine.disk.kv.blocks, world.hashes(1)
    ask = world.request(prompt_of(1), "r")
    engine.load_blocks(ask.prompt_ids, ask.terms)
    found = world.depth()
    assert all(pool.find(name) is not None for name in hashes[:found])
    device.forget(hashes)
    pool.forget(hashes[1:])
    other = world.request(prompt_of(2), "other")
    engine.load_blocks(other.prompt_ids, other.terms)
    while pool.ledger().free:  # the rest of the slots is in use
        pool.hold([pool.allocate(None)])
    pool.hold(used := [pool.find(name) for name in pool.hashes() if name != hashes[0]])
    pool.release(used)  # later than the beginning of the prompt
    assert pool.find(hashes[0]) is not None
    assert engine.load_blocks(ask.prompt_ids, ask.terms) == found - 1
    assert all(pool.find(name) is not None for name in hashes[:found])


def test_a_load_ends_before_its_request_gives_it_up(world, monkeypatch):
    """What was read by then is used; the disk is not taken for one that hangs."""
    world.start()
    world.fill()
    clock = FakeClock()
    world.start(clock, load_timeout_s=0.5)  # how fast computing is is not known: a second
    read = BlockFolder.read

    def read_slowly(*arguments):
        clock.advance(0.15)
        return read(*arguments)

    monkeypatch.setattr(BlockFolder, "read", read_slowly)
    began_s, request = clock.now(), world.request(prompt_of(1), "r")
    num_loaded = world.engine.load_blocks(request.prompt_ids, request.terms)
    assert num_loaded == 2
    assert clock.now() - began_s < 0.5


def test_the_blocks_of_a_deleted_tenant_are_hidden_at_once_and_taken_out_a_few_at_a_time(world, monkeypatch):
    """The step loop waits for the lock, and a tenant may have a million of them."""
    monkeypatch.setattr(disk_index, "MAX_DROPPED", 2)
    world.start()
    world.fill()
    engine = world.start()
    ask, num_found, index = world.request(prompt_of(1), "r"), len(world.files), engine.disk.index
    assert engine.disk_worth_s(ask.prompt_ids, ask.terms) > 0
    assert engine.forget_tenant("t") == num_found > 4
    assert index.dropped["forgotten"] == 0
    assert engine.disk_worth_s(ask.prompt_ids, ask.terms) == 0
    assert engine.cache_changes(None).on_disk == ()
    engine.verify()
    assert index.drop_hidden(tenant_folder("t"))
    assert index.dropped["forgotten"] == 2
    engine.disk.write()
    assert world.reconcile().dropped == {"forgotten": num_found}
    assert world.files == []
    world.fill()  # as another tenant with its name would
    assert world.ask_again() == 4 * world.depth()
