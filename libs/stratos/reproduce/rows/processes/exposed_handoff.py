"""Share of a hand-off that a first token waits for: prompts of two workers and of one by turns, with its interval.

A prefill and a decode worker are processes of their own with the shipped model and one thread of computation each.  A
random prompt is computed by the decode worker itself, another one of the same length by the prefill worker, which hands
its KV over; which of the two comes first changes with each pair.  A time runs from the submission on the decode
worker's session to the first token.  The exposed share is (handed - alone) / handed of a pair; below 0 the hand-off
was the faster one.  Pairs are neighbours in time, so what else the machine does widens the interval and moves the
median little.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from statistics import median

from stratos.common.tls.identity import PeerRole
from stratos.core.placement import WorkerRef
from stratos.reproduce.load.paired import median_interval
from stratos.reproduce.load.worker_pair import PairSession, session, worker
from stratos.reproduce.record.answer import FigureKind
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import Cell, ResultTable, RowResult

FIRST_TOKEN, NUM_OUTPUT = 10, 2
WARM_UP_TOKENS = 64
COLUMNS = (
    "transport", "prompt_tokens", "pairs", "alone_ms", "handed_over_ms", "exposed_ms", "exposed_share", "least", "most",
    "coverage",
)  # fmt: skip


class PairedPrompts:
    """Prompts by turns with and without a hand-off; none comes twice."""

    def __init__(self, submits: PairSession, source: WorkerRef, vocab_size: int, rng: Random) -> None:
        self._session, self._source, self._vocab_size, self._rng = submits, source, vocab_size, rng

    async def pair(self, num_tokens: int, *, is_handed_first: bool) -> tuple[float, float]:
        """Seconds to the first token: alone, and handed over."""
        found = {}
        for is_handed in (is_handed_first, not is_handed_first):
            prompt = [self._rng.randrange(FIRST_TOKEN, self._vocab_size) for _ in range(num_tokens)]
            sources = (self._source,) if is_handed else ()
            found[is_handed] = (await self._session.run(prompt, sources, max_tokens=NUM_OUTPUT)).first_s
        return found[False], found[True]


def measure(conditions: RowConditions) -> RowResult:
    """All transports, one after the other, each with two workers of its own."""
    transports, prompts, count = conditions.sized(
        smoke=(("shm",), (128,), 2),
        short=(("shm", "gloo"), (1024, 2048), 12),
        full=(("shm", "gloo"), (1024, 2048, 4032), 20),
    )
    rows = [row for name in transports for row in asyncio.run(_measure(name, prompts, count, conditions))]
    return RowResult(
        tables=[
            ResultTable(
                title="First tokens with and without a hand-off: medians, and the interval of the exposed share",
                kind=FigureKind.MEASURED, columns=COLUMNS, rows=rows,
            )
        ],
        notes=[
            "Pairs are neighbours in time, in alternating order. least and most enclose the true median of the exposed "
            "share with the chance that coverage has, whatever its distribution; below 0 the hand-off was faster."
        ],
    )  # fmt: skip


async def _measure(
    transport: str, prompts: tuple[int, ...], count: int, conditions: RowConditions
) -> list[tuple[Cell, ...]]:
    async with _paired_prompts(transport, conditions) as asked:
        await asked.pair(WARM_UP_TOKENS, is_handed_first=False)  # connects the two
        return [
            _row(transport, size, [await asked.pair(size, is_handed_first=number % 2 == 1) for number in range(count)])
            for size in prompts
        ]


@asynccontextmanager
async def _paired_prompts(transport: str, conditions: RowConditions) -> AsyncIterator[PairedPrompts]:
    model = conditions.model.resolve()
    vocab_size = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"TRANSPORT__NAMES": json.dumps([transport])}
        source, target = [
            await stack.enter_async_context(worker(role, folder, settings, model=model))
            for role in (PeerRole.PREFILL_WORKER, PeerRole.DECODE_WORKER)
        ]
        submits = await stack.enter_async_context(session(target, model))
        yield PairedPrompts(submits, source.ref, vocab_size, Random(f"{transport} {conditions.seed}"))


def _row(transport: str, num_tokens: int, times: list[tuple[float, float]]) -> tuple[Cell, ...]:
    share = median_interval([(handed - alone) / handed for alone, handed in times])
    alone_ms, handed_ms = (1e3 * median(part) for part in zip(*times, strict=True))
    exposed_ms = 1e3 * median(handed - alone for alone, handed in times)
    return transport, num_tokens, len(times), alone_ms, handed_ms, exposed_ms, *share.cells()
