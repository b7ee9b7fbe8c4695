"""Some lines of a batch under a lease: read, computed, kept. A slice that is lost is computed again, as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import orjson
from redis.exceptions import RedisError

from stratos.common.background import end_tasks
from stratos.common.errors import (
    AdapterUnavailable,
    ContentCheckDown,
    DependencyDown,
    FeatureUnavailable,
    NotFound,
    PromptRefused,
    RateLimited,
    Retryable,
    StratosError,
)
from stratos.core.tenant import Tenant
from stratos.store.sealed.batch_store import BatchStore, StoredBatch
from stratos_gateway.answering.request import IGNORED_HEADER, BatchLine
from stratos_gateway.batches.calls import LineAnswer, LineCalls
from stratos_gateway.batches.gate import LineGate
from stratos_gateway.batches.prefixes import prefix_key

MAX_TRIES = 64
"""Of a line under one lease: after that its slice is given up, and its next owner goes on trying."""
_MAX_WAIT_S = 30.0
_MAX_COMMITS = 8
"""Tries to keep a result while stores are away, over some two minutes; then its lines are computed again."""
_STOPS = ("cancelling", "expired")
"""States of a batch in which what was answered so far is kept, and no more is begun."""
_ITS_OWN = (RateLimited, AdapterUnavailable, FeatureUnavailable, ContentCheckDown, PromptRefused)
"""Refusals that say nothing of lines of other tenants."""
Recall = Callable[[], Awaitable[Tenant]]


@dataclass(frozen=True, slots=True)
class SliceIndex:
    """Where slices of an input begin."""

    offsets: list[int]
    counts: list[int]
    begins: list[int]
    """Number of the first line of each, from 0."""
    num_bytes: int

    @staticmethod
    def parse(content: bytes, num_bytes: int) -> SliceIndex:
        """The index as it is kept beside the input."""
        offsets, counts = zip(*orjson.loads(content), strict=True)
        return SliceIndex(list(offsets), list(counts), [0, *accumulate(counts)][:-1], num_bytes)

    def span(self, number: int) -> tuple[int, int]:
        """Bytes of a slice."""
        end = self.offsets[number + 1] if number + 1 < len(self.offsets) else self.num_bytes
        return self.offsets[number], end


@dataclass(slots=True)
class BatchWork:
    """A batch that this gateway works on."""

    tenant_id: str
    batch: StoredBatch
    index: SliceIndex
    store: BatchStore
    recall: Recall
    input: Any = field(repr=False, default=None)
    """File of its lines."""

    async def lines(self, number: int) -> list[dict[str, Any]]:
        """Lines of a slice; raises ``NotFound`` where the input is gone."""
        begin, end = self.index.span(number)
        parts = [part async for part in self.store.files.read(self.tenant_id, self.input, begin, end)]
        return [orjson.loads(line) for line in b"".join(parts).split(b"\n") if line]

    async def hold(
        self, claim: tuple[int, int], lease_s: float, work: Coroutine[Any, Any, None], status: str = ""
    ) -> str:
        """Renew a lease for as long as some work under it takes.

        Args:
            claim: slice, and the epoch of its lease.
            lease_s: until it is taken away.
            work: ended early where the batch is not ``status`` any more.
            status: of the batch; empty is any, and then a lease that was lost ends nothing.

        Returns:
            The status for which the work was ended, "fenced" where the lease was lost; empty where it is done.
        """
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=lease_s / 3))[0]:
                # Where Redis is away no gateway can take the slice, and what was lost is refused in the end.
                with suppress(DependencyDown, RedisError):
                    found = await self.store.renew(self.tenant_id, self.batch.id, claim, lease_s)
                    if status and found != status:
                        return found
            await task
            return ""
        finally:
            await end_tasks([task])


class SliceRun:
    """One slice.

    Args:
        work: its batch.
        claim: its number, and the epoch of its lease.
        calls: answers lines.
        gate: how many at a time.
        lease_s: until it is taken away.
        by_prefix: lines go by their prefixes.
    """

    def __init__(
        self,
        work: BatchWork,
        claim: tuple[int, int],
        calls: LineCalls,
        gate: LineGate,
        lease_s: float,
        *,
        by_prefix: bool = True,
    ) -> None:
        self._by_prefix = by_prefix
        self._work = work
        self._claim = claim
        self._calls = calls
        self._gate = gate
        self._lease_s = lease_s
        self._lines: list[dict[str, Any]] = []
        self._arrived_unix_ms = 0
        self._found: dict[int, LineAnswer] = {}
        """By the number of the line within the slice."""

    async def run(self) -> None:
        """Compute it, and keep its result; nothing where the slice was lost.

        Raises:
            NotFound: the input is gone.
            Retryable: it has to be given up.
        """
        hold = partial(self._work.hold, self._claim, self._lease_s)
        stopped = await hold(self._compute(), "in_progress")
        if not stopped or stopped in _STOPS:
            await hold(self._commit())

    async def _compute(self) -> None:
        work, number = self._work, self._claim[0]
        self._lines = lines = await work.lines(number)
        self._arrived_unix_ms = await work.store.arrived_unix_ms(work.tenant_id, work.batch.id, number)
        try:
            tenant = (await self._work.recall()).as_batch()
        except Retryable:
            raise
        except StratosError as error:
            refusal = self._calls.refusal
            self._found = {at: refusal(error, line["url"], self._name(at)) for at, line in enumerate(lines)}
            return
        async with asyncio.TaskGroup() as group:
            for key, number in sorted((self._key(line), number) for number, line in enumerate(lines)):
                group.create_task(self._line(tenant, number, lines[number], key))

    def _name(self, number: int) -> str:
        """Name of a line of the slice."""
        return f"{self._work.batch.id}-{self._work.index.begins[self._claim[0]] + number}"

    def _key(self, line: dict[str, Any]) -> bytes:
        return prefix_key(line["body"]) if self._by_prefix else b""

    async def _line(self, tenant: Tenant, number: int, line: dict[str, Any], key: bytes) -> None:
        epoch = self._claim[1]
        name = self._name(number)

        def identity(place: int) -> BatchLine:
            return BatchLine(
                name=name,
                epoch=(epoch - 1) * MAX_TRIES + place + 1,
                created_unix_s=self._work.batch.created_unix_s,
                arrived_unix_ms=self._arrived_unix_ms,
            )

        self._found[number] = await answer_line(self._calls, self._gate, tenant, line, identity, key)

    async def _commit(self) -> None:
        """Keep the result once its lines are billed: where gateways and workers end at once, nothing else does that."""
        await self._calls.billed()
        work, rows, num_completed = self._work, list[tuple[int, bool, str]](), 0
        for number, answer in sorted(self._found.items()):
            text = result_line(self._name(number), self._lines[number]["custom_id"], answer)
            rows.append((number, answer.is_ok, text))
            num_completed += answer.is_ok
        counts = num_completed, len(rows) - num_completed
        content = orjson.dumps(rows)
        for place in range(_MAX_COMMITS):
            try:
                await work.store.commit(work.tenant_id, work.batch.id, self._claim, content, counts)
                return
            except (DependencyDown, RedisError):
                if place + 1 == _MAX_COMMITS:
                    raise
            await asyncio.sleep(min(2.0**place, _MAX_WAIT_S))


async def answer_line(
    calls: LineCalls,
    gate: LineGate,
    tenant: Tenant,
    line: dict[str, Any],
    identity: Callable[[int], BatchLine],
    key: bytes = b"",
) -> LineAnswer:
    """Answer one line, as often as it takes.

    Args:
        calls: answers lines.
        gate: how many at a time.
        tenant: whose line it is.
        line: as its file has it.
        identity: of each try, from 0.
        key: of its prefix, by which it waits; lines without one go in turn.

    Raises:
        Retryable: it was refused ``MAX_TRIES`` times.
    """
    for place in range(MAX_TRIES):
        try:
            async with gate.place(key):
                answer = await calls.call(tenant, line["url"], line["body"], identity(place))
            gate.note_answer(is_ok=answer.is_ok)
            return answer
        except Retryable as error:
            gate.note_refusal(is_full=not isinstance(error, _ITS_OWN))
            refused, after_s = error, (error.after_s or 0.0) * min(2.0**place, _MAX_WAIT_S)
        await asyncio.sleep(min(max(after_s, 0.1), _MAX_WAIT_S))
    raise refused


def result_line(name: str, custom_id: str, answer: LineAnswer | None, error: tuple[str, str] = ("", "")) -> str:
    """A line of a batch's output.

    Args:
        name: of the line, for receipts and logs.
        custom_id: of its client.
        answer: of the route; ``None`` where there is none.
        error: code and message, where there is no answer.
    """
    response = None
    if answer is not None:
        response = {"status_code": answer.status, "request_id": name, "body": answer.body}
        if answer.ignored:
            response["headers"] = {IGNORED_HEADER.decode(): answer.ignored}
    shown = None if answer is not None else {"code": error[0], "message": error[1]}
    value = {"id": f"batch_req_{name.removeprefix('batch_')}", "custom_id": custom_id, "response": response}
    return orjson.dumps({**value, "error": shown}).decode()


def gone() -> NotFound:
    """The input of a batch is there no more."""
    return NotFound("the input file was deleted, or its time is over")
