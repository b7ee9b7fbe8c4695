"""Puts together what this gateway saw of its requests and what workers counted; pure but for its sessions.

begin ──▶ open ──▶ end: waits for the worker's count, not for long ──▶ ready ──▶ written ──▶ acknowledged
a count of no open request of this gateway ──▶ claim ──▶ written ──▶ acknowledged

Requests that no worker counts are followed: what they have taken so far is in the ledger while they run, so that it is
billed when this gateway dies.  A count that comes after the entry was made is a claim, too: the ledger keeps the entry
and takes the device time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from stratos.common.clock import Clock
from stratos.core.ledger.entry import LedgerEntry
from stratos.core.ledger.usage import UsageCount
from stratos.core.requests.records import RequestKey
from stratos_gateway.answering.draft import Draft
from stratos_gateway.ledger.entries import own_entry

_MAX_REMEMBERED = 200_000
"""Claims, and requests whose workers are known. A worker offers again what was forgotten here."""


_FOLLOW_S = 1.0
"""Between two entries of a request that goes on."""


class CountSource(Protocol):
    """A session with a worker."""

    def acknowledge_usage(self, request_ids: Sequence[str]) -> None:
        """The ledger has these."""
        ...


@dataclass(slots=True)
class _Open:
    counted: dict[int, UsageCount] = field(default_factory=dict)
    draft: Draft | None = None
    due_s: float = 0.0


@dataclass(slots=True, eq=False)
class _RunningCall:
    draft_so_far: Callable[[], Draft | None]
    number: int = 0
    due_s: float = 0.0


class Meter:
    """Belongs to the event loop.

    Args:
        clock: monotonic.
        count_wait_s: how long an ended request waits for its worker's count.
    """

    def __init__(self, clock: Clock, count_wait_s: float) -> None:
        self._clock = clock
        self._count_wait_s = count_wait_s
        self._open: dict[str, _Open] = {}
        self._settled: OrderedDict[str, bool] = OrderedDict()
        self._followed: dict[_RunningCall, None] = {}
        self._claims: dict[RequestKey, UsageCount] = {}
        self._sources: OrderedDict[str, dict[CountSource, None]] = OrderedDict()

    def begin(self, request_id: str) -> None:
        """A worker gets this request: it ends here, and counts of it are no claims."""
        self._open.setdefault(request_id, _Open())

    def end(self, draft: Draft) -> None:
        """A request has ended."""
        if self._settled.pop(draft.request_id, False):
            return
        found = self._open.setdefault(draft.request_id, _Open())
        found.draft, found.due_s = draft, self._clock.now() + self._count_wait_s

    def ended(self) -> set[str]:
        """Requests that have ended, and whose entries are to be made yet."""
        return {request_id for request_id, found in self._open.items() if found.draft is not None}

    def note_settled(self, request_ids: Iterable[str]) -> None:
        """These are in the ledger before their end."""
        self._settled.update(dict.fromkeys(request_ids, True))
        while len(self._settled) > _MAX_REMEMBERED:
            self._settled.popitem(last=False)

    @contextmanager
    def follow(self, draft_so_far: Callable[[], Draft | None]) -> Iterator[None]:
        """Keep what a request that no worker counts has taken so far in the ledger, as long as it runs."""
        followed = _RunningCall(draft_so_far)
        self._followed[followed] = None
        try:
            yield
        finally:
            del self._followed[followed]

    def on_counts(self, source: CountSource, counts: Iterable[UsageCount]) -> None:
        """A worker said what ended attempts took."""
        for count in counts:
            request_id, attempt = count.key
            self._sources.setdefault(request_id, {})[source] = None
            if (found := self._open.get(request_id)) is not None:
                found.counted[attempt] = count
            elif len(self._claims) < _MAX_REMEMBERED:
                self._claims[count.key] = count
        while len(self._sources) > _MAX_REMEMBERED:
            self._sources.popitem(last=False)

    def take_ready(self, *, waits: bool = True) -> list[LedgerEntry]:
        """Entries of ended requests whose worker has said what it took, or has not for too long.

        Args:
            waits: else all that have ended.
        """
        now_s, ready = self._clock.now(), []
        for request_id, found in list(self._open.items()):
            draft = found.draft
            if draft is None:
                continue
            is_counted = draft.last_attempt is None or draft.last_attempt in found.counted
            if is_counted or not waits or found.due_s <= now_s:
                del self._open[request_id]
                ready.append(own_entry(draft, found.counted))
        return [*ready, *self._so_far(now_s)]

    def _so_far(self, now_s: float) -> Iterator[LedgerEntry]:
        """Entries of requests that go on, each above the one before and below that of the end."""
        for followed in self._followed:
            if followed.due_s <= now_s and (draft := followed.draft_so_far()) is not None:
                followed.number, followed.due_s = followed.number + 1, now_s + _FOLLOW_S
                yield replace(own_entry(draft, {}), rank=followed.number)

    def take_claims(self) -> list[UsageCount]:
        """Counts of requests that are not open here."""
        claims, self._claims = list(self._claims.values()), {}
        return claims

    def give_back_claims(self, counts: Iterable[UsageCount]) -> None:
        """These could not be written: a worker whose session lives tells a count once."""
        for count in counts:
            if len(self._claims) < _MAX_REMEMBERED:
                self._claims.setdefault(count.key, count)

    def acknowledge(self, request_ids: Iterable[str]) -> None:
        """These are in the ledger: let their workers forget them."""
        by_source: dict[CountSource, list[str]] = {}
        for request_id in request_ids:
            for source in self._sources.pop(request_id, ()):
                by_source.setdefault(source, []).append(request_id)
        for source, ids in by_source.items():
            source.acknowledge_usage(ids)
