"""Receipts on their way into the store, when the process ends in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stratos.core.ledger.receipt import RequestReceipt, request_receipt
from stratos_gateway.receipts.desk import ReceiptDesk
from tests.support.waiting import eventually


class Store:
    """Hangs until it is let go."""

    def __init__(self) -> None:
        self.hangs, self.num_asked = True, 0
        self.ids: list[str] = []

    async def put(self, receipts: Sequence[RequestReceipt]) -> None:
        self.num_asked += 1
        if self.hangs:
            await asyncio.Event().wait()
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
