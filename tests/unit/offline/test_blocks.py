"""Blocks and their store."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratos.common.errors import BadRequest, DependencyDown
from stratos.store.local_store import LocalStore
from stratos_offline.blocks import MAX_TRIES, BlockStore, BlockTask, cut
from stratos_offline.lines import LineFile
from tests.support.worlds.offline_job import write_lines


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    (tmp_path / "store").mkdir()
    return BlockStore(LocalStore(tmp_path / "store"))


def test_a_key_is_of_the_job_and_of_the_lines(tmp_path: Path) -> None:
    with LineFile(write_lines(tmp_path / "in.jsonl", ["a", "b", "c"])) as file:
        first = [task.key for task, _ in cut(file, range(3), "job", 2)]
        assert [task.key for task, _ in cut(file, range(3), "job", 2)] == first
        assert not {task.key for task, _ in cut(file, range(3), "other", 2)} & set(first)
        alone = [task.key for task, _ in cut(file, [2, 1, 0], "job", 1)]
        assert len({*alone, *first}) == 4
        assert alone[0] == first[1], "the same line is the same block"
        assert [(task.num_lines, task.begin) for task, _ in cut(file, [2, 1, 0], "job", 2)] == [(2, 2), (1, 0)]


def test_long_lines_make_short_blocks(tmp_path: Path) -> None:
    with LineFile(write_lines(tmp_path / "in.jsonl", ["x" * 900_000] * 6)) as file:
        assert [task.num_lines for task, _ in cut(file, range(6), "job", 100)] == [4, 2]


async def test_a_block_is_begun_so_often_and_no_more(store: BlockStore) -> None:
    task = BlockTask(key="k", num_lines=2, begin=7)
    await store.put_lines(task, b'3\t{"a": 1}\n1\t{"a": 2}')
    assert await store.lines(task) == [(3, {"a": 1}), (1, {"a": 2})]
    for _ in range(MAX_TRIES):
        await store.begin(task)
    with pytest.raises(BadRequest, match="2 lines that begins with line 8 has ended 4 engines"):
        await store.begin(task)
    await store.forget_tries()  # the next run
    await store.begin(task)


async def test_a_checkpoint_is_found_with_its_counts(store: BlockStore) -> None:
    task = BlockTask(key="k", num_lines=2, begin=0)
    assert await store.find(task) is None
    await store.put_result(task, [(3, True, "one"), (1, False, 'two\n"')])
    found = await store.find(task)
    assert found is not None
    assert (found.num_lines, found.num_failed, found.was_there) == (2, 1, True)
    assert await store.rows(task) == [(3, True, "one"), (1, False, 'two\n"')]
    await store.drop()
    assert await store.find(task) is None


async def test_a_node_without_the_drivers_store_says_so(store: BlockStore) -> None:
    with pytest.raises(DependencyDown, match="all nodes must reach the store"):
        await store.lines(BlockTask(key="k", num_lines=1, begin=0))


@pytest.mark.parametrize("altered", [b"", b"[2,1]", b"cut", b"altered"])
async def test_a_damaged_checkpoint_is_none(store: BlockStore, tmp_path: Path, altered: bytes) -> None:
    task = BlockTask(key="k", num_lines=2, begin=0)
    await store.put_result(task, [(3, True, "one"), (1, False, "two")])
    path = tmp_path / "store" / "results" / "k"
    content = path.read_bytes()
    path.write_bytes({b"cut": content[:-9], b"altered": content.replace(b"one", b"two")}.get(altered, altered))
    assert await store.find(task) is None
    with pytest.raises(DependencyDown, match="damaged"):
        await store.rows(task)


async def test_damaged_lines_are_not_computed(store: BlockStore, tmp_path: Path) -> None:
    task = BlockTask(key="k", num_lines=1, begin=0)
    await store.put_lines(task, b'3\t{"a": 1}')
    path = tmp_path / "store" / "blocks" / "k"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DependencyDown, match="damaged"):
        await store.lines(task)
