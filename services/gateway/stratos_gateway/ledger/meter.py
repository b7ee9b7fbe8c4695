"""Puts together what this gateway saw of its requests and what workers counted; pure but for its sessions.

begin ──▶ open ──▶ end: waits for the worker's count, not for long ──▶ ready ──▶ written ──▶ acknowledged
a count of no open request of this gateway ──▶ claim ──▶ written ──▶ acknowledged

A count that comes after the entry was made is a claim, too: the ledger keeps the entry and takes the device time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stratos.common.clock import Clock
from stratos.core.ledger.entry import LedgerEntry
from stratos.core.ledger.usage import UsageCount
from stratos.core.requests.records import RequestKey
from stratos_gateway.answering.draft import Draft
from stratos_gateway.ledger.entries import own_entry

_MAX_REMEMBERED = 200_000
"""Claims, and requests whose workers are known. A worker offers again what was forgotten here."""


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
        self._claims: dict[RequestKey, UsageCount] = {}
        self._sources: OrderedDict[str, dict[CountSource, None]] = OrderedDict()

    def begin(self, request_id: str) -> None:
        """A worker gets this request: it ends here, and counts of it are no claims."""
        self._open.setdefault(request_id, _Open())

    def end(self, draft: Draft) -> None:
        """A request has ended."""
        found = self._open.setdefault(draft.request_id, _Open())
        found.draft, found.due_s = draft, self._clock.now() + self._count_wait_s

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
        return ready

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
