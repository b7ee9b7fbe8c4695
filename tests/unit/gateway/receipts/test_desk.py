"""Receipts on their way into the store: when the process ends, beside entries, and while Redis is away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stratos.common.errors import DependencyDown
from stratos.core.ledger.receipt import RequestReceipt, request_receipt
from stratos_gateway.receipts.desk import MAX_PENDING, ReceiptDesk
from tests.support.waiting import eventually


class Store:
    """Hangs until it is let go."""

    def __init__(self) -> None:
        self.hangs, self.num_asked = True, 0
        self.let_go, self.is_away = asyncio.Event(), False
        self.ids: list[str] = []

    async def put(self, receipts: Sequence[RequestReceipt]) -> None:
        self.num_asked += 1
        if self.hangs:
            await self.let_go.wait()
        if self.is_away:
            raise DependencyDown("away")
        self.ids += [receipt.request_id for receipt in receipts]


async def test_what_a_turn_that_was_cut_off_had_in_hand_goes_with_the_last_one() -> None:
    store = Store()
    desk = ReceiptDesk(store, 0.001)
    for number in range(200):
        desk.put(request_receipt("tn_1", f"req-{number}", {}))
    task = asyncio.create_task(desk.run())
    await eventually(lambda: store.num_asked)
    task.cancel()
    await asyncio.wait({task})
    store.hangs = False
    await desk.turn()
    assert store.ids == [f"req-{number}" for number in range(200)]


async def test_entries_wait_for_receipts_that_another_turn_has_in_hand() -> None:
    """Else a gateway that dies then has billed a request without its receipt."""
    store = Store()
    desk = ReceiptDesk(store, 60.0)
    desk.put(request_receipt("tn_1", "req-0", {}))
    turn = asyncio.create_task(desk.turn())
    await eventually(lambda: store.num_asked)
    entries = asyncio.create_task(desk.before_entries(True, ()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not entries.done()
    store.let_go.set()
    await asyncio.gather(turn, entries)
    assert store.ids == ["req-0"]


async def test_of_too_many_the_oldest_go_first_also_where_a_turn_had_them_in_hand() -> None:
    store = Store()
    desk = ReceiptDesk(store, 60.0)
    store.is_away = True
    for number in range(MAX_PENDING):
        desk.put(request_receipt("tn_1", f"req-{number}", {}))
    turn = asyncio.create_task(desk.turn())
    await eventually(lambda: store.num_asked)
    for number in range(MAX_PENDING, MAX_PENDING + 200):
        desk.put(request_receipt("tn_1", f"req-{number}", {}))
    store.let_go.set()
    await turn
    store.is_away = False
    await desk.turn()
    assert store.ids == [f"req-{number}" for number in range(200, MAX_PENDING + 200)]
