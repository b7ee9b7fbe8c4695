"""Revisions that are taken out, and sweeps: what a manifest refers to is never deleted."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from stratos.common.errors import BadRequest, Busy, DependencyDown, InvalidCheckpoint, NotFound
from stratos.store.local_store import LocalStore
from stratos.store.registry.catalogue import find_published, parse_reference
from stratos.store.registry.manifest import chunk_key
from stratos.store.registry.marks import DEAD_AFTER_S, MarkKind, marked
from stratos.store.registry.publishing import publish_again
from stratos.store.registry.retiring import CHUNKS, Swept, sweep, unpublish
from tests.support.reference.published_models import published
from tests.support.reference.second_model import save_second_model

WAY = DEAD_AFTER_S + 60


async def nothing(key: str) -> None:
    """No fault."""


class Store(LocalStore):
    """Calls ``on_read`` before a chunk is looked for, and fails after some deletions."""

    on_read: Callable[[str], Awaitable[None]] = staticmethod(nothing)
    num_deletions = 1_000_000

    async def read(self, key: str, offset: int, num_bytes: int) -> bytes:
        await self.on_read(key)
        return await super().read(key, offset, num_bytes)

    async def delete(self, key: str) -> None:
        if key.startswith(CHUNKS):
            if not self.num_deletions:
                raise DependencyDown("the store is away")
            self.num_deletions -= 1
        await super().delete(key)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "objects").mkdir()
    return tmp_path / "objects"


@pytest.fixture
def store(root: Path) -> Store:
    return Store(root)


def chunks_of(root: Path) -> set[str]:
    return {path.name for path in (root / CHUNKS).rglob("*") if path.is_file()}


def age(root: Path, folder: str, seconds: float) -> None:
    """Let everything below a folder be so much older."""
    for path in (root / folder).rglob("*"):
        written = path.stat().st_mtime - seconds
        os.utime(path, (written, written))


async def test_a_sweep_deletes_what_no_manifest_refers_to_and_nothing_else(
    store: Store, root: Path, tmp_path: Path
) -> None:
    first = await published(store)
    twin = await published(store, name="org/twin", created=9_000)
    second = await published(store, save_second_model(tmp_path / "second"), created=2_000)
    own = {digest for file in second.manifest.files for digest in file.chunks}
    shared = {digest for file in first.manifest.files for digest in file.chunks}
    assert await sweep(store, min_age_s=0) == Swept()
    gone = await unpublish(store, parse_reference(f"registry:draft@{second.manifest.digest[:8]}"))
    assert gone == second
    with pytest.raises(NotFound):
        await find_published(store, parse_reference(second.reference))
    assert own <= chunks_of(root), "chunks stay until a sweep"
    assert await sweep(store) == Swept(), "they are young"
    unused = own - shared
    assert (await sweep(store, min_age_s=0, deletes=False)).num_chunks == len(unused) > 0
    assert own <= chunks_of(root)
    assert (await sweep(store, min_age_s=0)).num_chunks == len(unused)
    assert chunks_of(root) == shared
    await unpublish(store, parse_reference(first.reference))
    assert await sweep(store, min_age_s=0) == Swept(), "another name has the same chunks"
    assert await find_published(store, parse_reference(twin.reference)) == twin


async def test_a_sweep_that_ends_in_the_middle_is_finished_by_the_next(store: Store, root: Path) -> None:
    made = await published(store)
    await unpublish(store, parse_reference(made.reference))
    store.num_deletions = 1
    with pytest.raises(DependencyDown):
        await sweep(store, min_age_s=0)
    assert chunks_of(root)
    store.num_deletions = 1_000_000
    assert (await sweep(store, min_age_s=0)).num_chunks > 0
    assert chunks_of(root) == set()
    assert await published(store) is not None, "it can be published again"


async def test_no_sweep_begins_beside_a_publication_nor_a_publication_beside_a_sweep(store: Store, root: Path) -> None:
    made = await published(store)
    await unpublish(store, parse_reference(made.reference))
    refusals: list[str] = []

    async def try_sweep(key: str) -> None:
        if key.startswith(CHUNKS):
            with pytest.raises(Busy, match="being published"):
                await sweep(store, min_age_s=0)
            refusals.append(key)

    store.on_read = try_sweep
    made = await published(store)  # finds all chunks there
    assert refusals
    store.on_read = nothing
    async with marked(store, MarkKind.SWEEPING):
        with pytest.raises(Busy, match="swept"):
            await published(store, name="other")
        with pytest.raises(Busy, match="swept"):
            await publish_again(store, "other", parse_reference(made.reference))
        with pytest.raises(Busy, match="swept"):
            await sweep(store)
    assert await sweep(store, min_age_s=0) == Swept()
    assert await published(store, name="other")


async def test_a_publisher_that_was_taken_for_dead_publishes_nothing(store: Store, root: Path) -> None:
    made = await published(store)
    await unpublish(store, parse_reference(made.reference))
    swept: list[Swept] = []

    async def stand_still(key: str) -> None:
        if key == chunk_key(made.manifest.files[-1].chunks[-1]) and not swept:
            swept.append(Swept())
            age(root, "registry/marks", WAY)
            swept.append(await sweep(store, min_age_s=0))

    store.on_read = stand_still
    with pytest.raises(Busy, match="publish again"):
        await published(store)
    assert swept[1].num_chunks > 1, "it had found them there"
    with pytest.raises(NotFound):
        await find_published(store, parse_reference("registry:draft"))
    store.on_read = nothing
    again = await published(store)
    assert {digest for file in again.manifest.files for digest in file.chunks} == chunks_of(root)


async def test_a_dead_publishers_mark_holds_up_no_sweep(store: Store, root: Path) -> None:
    (root / "registry/marks").mkdir(parents=True)
    mark = root / "registry/marks/publishing-1"
    mark.write_text("{}")
    with pytest.raises(Busy):
        await sweep(store)
    age(root, "registry/marks", WAY)
    await sweep(store)
    assert not mark.exists()


async def test_a_manifest_that_was_altered_keeps_all_chunks(store: Store, root: Path) -> None:
    made = await published(store)
    other = await published(store, name="other")
    await unpublish(store, parse_reference(made.reference))
    (path,) = (root / "registry/models/other").rglob("*.json")
    path.write_text(path.read_text().replace("1", "2"))
    before = chunks_of(root)
    with pytest.raises(InvalidCheckpoint):
        await sweep(store, min_age_s=0)
    assert chunks_of(root) == before
    assert other.name == "other"


async def test_a_revision_that_is_taken_out_beside_a_sweep_does_not_end_it(store: Store, root: Path) -> None:
    made = await published(store)
    is_gone = False

    async def take_out(key: str) -> None:
        nonlocal is_gone
        if key.endswith(".json") and not is_gone:
            is_gone = True
            await unpublish(store, parse_reference(made.reference))

    store.on_read = take_out
    assert (await sweep(store, min_age_s=0)).num_chunks > 0
    assert is_gone
    assert chunks_of(root) == set()


async def test_a_revision_is_named_and_never_the_newest_by_chance(store: Store) -> None:
    await published(store)
    with pytest.raises(BadRequest, match="name the revision"):
        await unpublish(store, parse_reference("registry:draft"))
    with pytest.raises(NotFound):
        await unpublish(store, parse_reference("registry:draft@00000000"))
