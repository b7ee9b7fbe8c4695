"""A request at the external endpoint is in the ledger once, with its outcome, unless it runs here after all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import WorkerLost
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.usage import MeterTag
from stratos.core.tenancy.prices import Price
from stratos.core.tenant import Tenant
from stratos_gateway.ledger.account import ExternalAccount
from stratos_gateway.ledger.meter import Meter
from stratos_gateway.overflow.output import ExternalOutput

PRICE = Price(prompt=2_000_000, output=5_000_000)
EVENTS: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
]


async def events() -> AsyncIterator[dict[str, Any]]:
    for event in EVENTS:
        yield event


@pytest.mark.parametrize(
    ("error", "has_answered", "expected"),
    [
        (None, True, [(RequestOutcome.EXTERNAL, 7, 3)]),
        (WorkerLost("no"), False, []),
        (WorkerLost("no"), True, [(RequestOutcome.FAILED, 7, 3)]),
        (asyncio.CancelledError(), True, [(RequestOutcome.ABORTED, 7, 3)]),
    ],
)
async def test_one_entry(
    error: BaseException | None, has_answered: bool, expected: list[tuple[RequestOutcome, int, int]]
) -> None:
    meter, output = Meter(FakeClock(), 1.0), ExternalOutput(events(), 1, len, 5)
    account = ExternalAccount(
        meter, Tenant(name="t"), MeterTag(model="m"), output, PRICE, has_answered=lambda: has_answered
    )
    await output.finish()
    account.__exit__(None if error is None else type(error), error, None)
    entries = meter.take_ready()
    assert [(e.outcome, e.counts.num_prompt, e.counts.num_output) for e in entries] == expected
    assert all(e.is_external and e.external_cost == 7 * 2 + 3 * 5 for e in entries), "what the endpoint charges"
