"""The disk tier over the fake runner: what was evicted comes back bit for bit, and nothing wrong ever does."""

import random
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from stratos.core.kv import StagingLedger
from stratos.engine.kv_disk import disk_tier
from stratos.engine.kv_disk.block_folder import tenant_folder
from stratos.engine.kv_disk.counts import LOAD_REFUSALS
from stratos.engine.kv_disk.disk_index import DROP_REASONS
from stratos.routing.policy.prefix_index import PrefixIndex, PrefixMatches
from stratos.worker.metrics import WorkerMetrics
from tests.unit.engine.kv_disk.conftest import FILE_BYTES, KEY, OTHER_KEY


def damage(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_blocks_that_both_tiers_gave_up_come_back(world):
    world.start()
    world.fill(kinds=range(1, 9))
    before = world.reconcile()
    assert before.num_written > 12
    assert world.ask_again() == 4 * world.depth()
    after = world.reconcile()
    assert after.num_loaded == after.num_hits == after.num_verified > 0


def test_another_process_finds_what_the_one_before_left(world):
    world.start()
    world.fill()
    num_stored = world.reconcile().blocks.stored
    world.start()
    assert world.reconcile().num_found == num_stored
    assert world.ask_again() == 4 * world.depth()
    assert world.reconcile().num_loaded == world.depth()


def test_what_was_used_last_is_known_after_a_restart(world):
    world.start()
    world.fill()
    world.start()
    world.ask_again()
    world.start(max_bytes=2 * FILE_BYTES)
    world.engine.disk.write()
    assert sum(world.reconcile().dropped.values()) > 0
    assert world.ask_again() == 4 * world.depth() == 8


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_of_any_file_is_computed_again_and_counted(world, seed):
    world.start()
    world.fill()
    bit = random.Random(seed).randrange(8 * FILE_BYTES)
    for path in world.files:
        damage(path, bit)
    world.start()
    num_blocks = world.depth()
    assert world.ask_again() == 0
    status = world.engine.status().disk
    wrong_key = 8 * 72 <= bit < 8 * 88
    assert status.not_loaded == {"other_key" if wrong_key else "damaged": 1, "behind": num_blocks - 1}
    assert sum(status.dropped.values()) == 1


def test_every_bit_of_a_file_counts(world):
    world.start()
    world.fill()
    seal, layout = disk_tier.open_block, disk_tier.layout_digest(world.engine.info)
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
    world.fill()
    contents = [path.read_bytes() for path in world.files]
    for path, content in zip(world.files, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    world.start()
    assert world.ask_again() == 0
    assert world.engine.status().disk.not_loaded["damaged"] == 1


@pytest.mark.parametrize("cut", [0, 1, FILE_BYTES - 1])
def test_a_cut_file_is_removed_at_the_start(world, cut):
    world.start()
    world.fill()
    for path in world.files:
        path.write_bytes(path.read_bytes()[:cut])
    world.start()
    assert world.engine.status().disk.num_found == 0
    assert world.files == []
    assert world.ask_again() == 0


@pytest.mark.parametrize("change", [{"model_digest": "another"}, {"block_size": 8}])
def test_blocks_of_another_layout_are_not_used_and_go(world, change):
    world.start()
    world.fill()
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
    world.fill(key=b"")
    status = world.reconcile()
    assert status.not_kept == {"no_key": status.num_noted}
    assert status.num_noted > 0
    assert world.files == []


def test_under_another_key_blocks_are_noise_and_go(world):
    world.start()
    world.fill()
    world.start()
    num_blocks = world.depth()
    assert world.ask_again(key=OTHER_KEY) == 0
    status = world.engine.status().disk
    assert status.not_loaded == {"other_key": 1, "behind": num_blocks - 1}
    assert status.dropped == {"other_key": 1}


def test_no_file_holds_a_byte_of_kv_in_the_clear(world):
    world.start()
    world.fill()
    for path in world.files:
        assert sum(path.read_bytes().count(b"\0") for path in world.files) < FILE_BYTES * len(world.files) / 10
        assert path.stat().st_mode & 0o777 == 0o600


def test_one_tenant_does_not_find_the_blocks_of_another(world):
    world.start()
    world.fill(tenant="one")
    world.start()
    assert world.ask_again(tenant="two") == 0
    assert world.engine.status().disk.num_hits == 0


def test_a_tenant_above_its_quota_pushes_out_its_own_blocks_alone(world):
    world.start(max_bytes=20 * FILE_BYTES, max_tenant_ratio=0.5)
    world.fill(tenant="small", kinds=[1, 2, 3])
    index = world.engine.disk.index
    num_small = index.num_of(tenant_folder("small"))
    world.fill(tenant="big", kinds=range(3, 12))
    world.engine.disk.write()
    status = world.reconcile()
    assert index.num_of(tenant_folder("small")) >= num_small > 0
    assert index.num_of(tenant_folder("big")) == 10
    assert set(status.dropped) == {"quota"}


def test_the_bound_of_all_tenants_holds(world):
    world.start(max_bytes=10 * FILE_BYTES)
    for number in range(4):
        world.fill(tenant=f"t{number}", kinds=[1, 2])
    world.engine.disk.write()
    status = world.reconcile()
    assert status.blocks.stored == status.blocks.total == 10
    assert status.dropped["pressure"] > 0


def test_a_forgotten_tenant_has_no_file_and_no_hit(world):
    world.start()
    world.fill(tenant="one")
    world.fill(tenant="two", kinds=[7, 8, 9])
    assert world.engine.forget_tenant("one") > 0
    world.engine.disk.write()
    status = world.reconcile()
    assert status.blocks.stored == world.engine.disk.index.num_of(tenant_folder("two")) > 0
    assert not (world.files[0].parent.parent / tenant_folder("one")).exists()
    assert world.ask_again(tenant="one") == 0


def test_invalidated_blocks_leave_the_disk_as_well(world):
    world.start()
    world.fill()
    hashes = [bytes.fromhex(path.stem) for path in world.files]
    assert world.engine.forget_blocks(hashes) == len(hashes)
    world.engine.disk.write()
    assert world.reconcile().dropped == {"forgotten": len(hashes)}
    assert world.files == []


def test_series_of_the_worker_are_the_ledger(world):
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    engine = world.start(max_bytes=12 * FILE_BYTES)
    for kinds, key in ((range(1, 6), KEY), ([7, 8], b""), ([3, 2, 1], KEY), ([1], OTHER_KEY)):
        world.fill(kinds, key=key)
        metrics.observe_status(engine.status(), StagingLedger())
    world.start()
    status = world.reconcile()

    def value(name, **labels):
        return registry.get_sample_value(f"stratos_kv_disk_{name}", labels)

    before = engine.status().disk
    assert before.num_loaded > 0
    assert value("blocks", state="stored") == before.blocks.stored == status.num_found == len(world.files)
    assert value("bytes") == sum(path.stat().st_size for path in world.files)
    assert value("blocks", state="free") == 12 - len(world.files)
    assert value("moved_bytes_total", direction="out") == before.num_written * FILE_BYTES
    assert value("moved_bytes_total", direction="in") == before.num_loaded * FILE_BYTES
    out, found = (value("moved_blocks_total", direction="out"), value("hit_blocks_total"))
    dropped = sum(value("dropped_blocks_total", reason=reason) for reason in DROP_REASONS)
    not_loaded = sum(value("not_loaded_blocks_total", reason=reason) for reason in LOAD_REFUSALS)
    assert out - dropped == len(world.files)
    assert found == value("moved_blocks_total", direction="in") + not_loaded
    assert value("not_kept_blocks_total", reason="no_key") == before.not_kept["no_key"] > 0
    assert value("dropped_blocks_total", reason="quota") == before.dropped["quota"] > 0


def test_routers_hear_in_which_tier_a_block_is_and_its_share_of_the_time(world):
    """A reader that follows every change knows the same as one that begins now."""
    engine = world.start()
    follower, last = PrefixIndex(max_blocks=1000), None
    for kinds in ([1, 2], [3], [4, 5], [1], [2], [6]):
        world.fill(kinds)
        changes = engine.cache_changes(last)
        assert follower.apply("w", changes)
        last = changes.last
        beginner = PrefixIndex(max_blocks=1000)
        for part in engine.cache_changes(None).parts(3):
            assert beginner.apply("w", part)
        assert follower.blocks_of("w") == beginner.blocks_of("w")
        for kind in range(1, 7):
            names = world.names(kind)
            assert follower.match(names) == beginner.match(names)
    assert follower.match(world.names(3)).below["w"] != (0, 0)
    world.start()
    restarted = PrefixIndex(max_blocks=1000)
    assert restarted.apply("w", world.engine.cache_changes(None))
    found = world.depth()
    assert restarted.match(world.names(1)) == PrefixMatches({"w": found}, {"w": (0, found)})
    host, disk = world.engine.status().load_ratios
    assert 0 < host < disk < 1
