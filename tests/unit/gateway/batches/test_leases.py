"""Leases of slices and of the making of files last as long as the work, however slow the object store is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from stratos.common.errors import DependencyDown, InvalidApiKey, StreamMoved
from stratos.core.tenant import Tenant
from stratos.store.sealed.file_writer import FileWriter
from stratos_gateway.batches.calls import LineCalls
from stratos_gateway.batches.finals import FinalRun
from stratos_gateway.batches.slices import BatchWork, SliceIndex, SliceRun

LEASE_S = 0.01
LINE = orjson.dumps({"custom_id": "c0", "method": "POST", "url": "/v1/completions", "body": {}}) + b"\n"


class Store:
    """Writes nothing until a lease was renewed three times while it was asked to."""

    def __init__(self, status: str, num_files: int = 1000, *, is_lost: bool = False) -> None:
        self._status, self._is_lost = status, is_lost
        self.files: Any = self
        self.done: list[Any] = []
        self.kept_s: list[float] = []
        self.dropped: list[tuple[int, int]] = []
        self._num_files = num_files
        self._is_writing = False
        self._num_renewed = 0
        self._is_renewed = asyncio.Event()

    async def renew(self, tenant_id: str, batch_id: str, claim: tuple[int, int], lease_s: float) -> str:
        self._num_renewed += self._is_writing
        if self._num_renewed == 3:
            self._is_renewed.set()
        return "fenced" if self._is_lost and self._is_writing else self._status

    async def _written(self) -> None:
        self._is_writing = True
        async with asyncio.timeout(10.0):
            await self._is_renewed.wait()

    async def commit(
        self, tenant_id: str, batch_id: str, claim: tuple[int, int], result: bytes, counts: tuple[int, int]
    ) -> bool:
        await self._written()
        self.done.append((claim, counts))
        return True

    async def read(self, tenant_id: str, file: Any, begin: int, end: int) -> AsyncIterator[bytes]:
        yield LINE

    async def arrived_unix_ms(self, tenant_id: str, batch_id: str, slice_number: int) -> int:
        return 5000

    async def epochs(self, tenant_id: str, batch_id: str, slices: range) -> list[int]:
        return [1] * len(slices)

    async def read_result(self, tenant_id: str, batch_id: str, claim: tuple[int, int]) -> bytes:
        return orjson.dumps([[0, True, "answer"]])

    async def writer(self, tenant_id: str, name: str) -> FileWriter:
        return FileWriter(bytes(32), name)

    async def put(self, tenant_id: str, file: Any, writer: FileWriter, kept_s: float) -> Any:
        self.kept_s.append(kept_s)
        await self._written()
        return file if self._num_files else None

    async def finish(
        self, tenant_id: str, batch_id: str, claim: tuple[int, int], status: str, *more: Any, **told: Any
    ) -> bool:
        self.done.append((claim, status))
        return True

    async def drop_result(self, tenant_id: str, batch_id: str, claim: tuple[int, int]) -> None:
        self.dropped.append(claim)


def work_of(store: Store, **head: Any) -> BatchWork:
    async def recall() -> Tenant:
        raise InvalidApiKey("revoked")

    kept = SimpleNamespace(**{"kept_s": None, **head})
    batch: Any = SimpleNamespace(id="batch_1", ends="completed", num_slices=1, head=kept)
    return BatchWork("acme", batch, SliceIndex([0], [1], [0], len(LINE)), cast("Any", store), recall)


async def test_a_slice_is_kept_until_its_result_is() -> None:
    store, nothing = Store("in_progress"), cast("Any", None)
    await SliceRun(work_of(store), (0, 1), LineCalls({}, nothing), nothing, LEASE_S).run()
    assert store.done == [((0, 1), (0, 1))]


async def test_a_result_is_kept_once_its_lines_are_billed() -> None:
    store, nothing = Store("in_progress"), cast("Any", None)

    async def billed() -> None:
        store.done.append("billed")

    await SliceRun(work_of(store), (0, 1), LineCalls({}, nothing, billed=billed), nothing, LEASE_S).run()
    assert store.done == ["billed", ((0, 1), (0, 1))]


async def test_a_batch_is_kept_until_its_files_are() -> None:
    store = Store("finalizing")
    await FinalRun(work_of(store), 1, LEASE_S, 60.0).run()
    assert (store.done, store.dropped) == ([((-1, 1), "completed")], [(0, 1)])


async def test_a_batch_that_another_gateway_has_is_ended_by_that_one() -> None:
    store = Store("finalizing", is_lost=True)
    with pytest.raises(StreamMoved):
        await FinalRun(work_of(store), 1, LEASE_S, 60.0).run()
    assert (store.done, store.dropped) == ([], [])


@pytest.mark.parametrize(("asked_s", "kept_s"), [(None, 60.0), (7.0, 7.0), (1e9, 60.0)])
async def test_results_are_kept_no_longer_than_files_are(asked_s: float | None, kept_s: float) -> None:
    store = Store("finalizing")
    await FinalRun(work_of(store, kept_s=asked_s), 1, LEASE_S, 60.0).run()
    assert store.kept_s == [kept_s]


async def test_results_without_room_are_not_left_in_the_object_store() -> None:
    store = Store("finalizing", num_files=0)
    await FinalRun(work_of(store), 1, LEASE_S, 60.0).run()
    assert (store.done, store.dropped) == ([((-1, 1), "failed")], [(0, 1)])


async def test_a_disk_that_is_full_is_left_to_another_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(writer: FileWriter, data: bytes) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(FileWriter, "write", full)
    store = Store("finalizing")
    with pytest.raises(DependencyDown):
        await FinalRun(work_of(store), 1, LEASE_S, 60.0).run()
    assert store.done == []
