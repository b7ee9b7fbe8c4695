"""Entries on their way into Redis: some in one script, those of many tenants side by side, and looks into segments for
the ones that may be there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from stratos.common.errors import DependencyDown
from stratos.core.ledger.entry import LedgerEntry, entry_to_text
from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.ledger.chain import Chain
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.ledger.window_store import WindowName, window_keys, window_of
from stratos.store.ledger.writing.entry_script import WRITE_ENTRIES
from stratos.store.records.settings import RecordStoreConfig

WAITS = "waits"
"""Outcome of an entry that is not written; why stands in the place of the amount."""
_NO_LOOK = "segments of the ledger could not be read a moment ago"
_MAX_ENTRIES = 32
"""Of one script: Redis answers others after some 2 ms."""
_MAX_LOOKS = 8
"""Looks into segments for one entry: each is in vain where another segment was appended during it."""
_MAX_FAILED_LOOKS = 2
"""Looks that fail in one write, each perhaps after a time-out; then the other late entries wait, too."""
Answer = tuple[str, str]
"""What came of an entry, and what its tenant owes for the month."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Result of a look into segments."""

    num_segments: int
    """Segments that were looked into."""
    number: int = -1
    text: str = ""
    """The entry that is there."""


class EntryWriter:
    """Writes; raises what the client of Redis raises.

    Args:
        redis: with decoded answers.
        config: where records lie.
        kept_s: of entries where none are sealed, and of spans.
        segments: where entries are that have left Redis; ``None`` where none leave it.
        store_id: of the store that takes what is written; ``None`` before it is known.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        kept_s: int,
        segments: SegmentStore | None,
        store_id: StoreId = any_store,
    ) -> None:
        self._redis = redis
        self._head = f"{config.prefix}:ledger"
        self._segments = segments
        self._chain = Chain(redis, config, store_id)
        self._script = GuardedScript(redis, config, WRITE_ENTRIES, store_id)
        self._kept_s = [0 if segments is not None else kept_s, kept_s]

    async def write(self, entries: Sequence[LedgerEntry], looks: bool) -> list[Answer]:
        """Write entries in their order.

        Args:
            entries: any number.
            looks: into segments for those that may be in one; else they wait.

        Raises:
            DependencyDown: segments follow each other too fast.
        """
        answers = await self._send([(entry, None) for entry in entries])
        for _ in range(_MAX_LOOKS):
            late = [place for place, (outcome, _) in enumerate(answers) if outcome == "late"]
            if not late:
                return answers
            found = await self._looks([entries[place] for place in late]) if looks else [_NO_LOOK] * len(late)
            seen = [(place, look) for place, look in zip(late, found, strict=True) if isinstance(look, _Look)]
            for place, look in zip(late, found, strict=True):
                if isinstance(look, str):
                    answers[place] = WAITS, look
            sent = await self._send([(entries[place], look) for place, look in seen])
            for (place, _), answer in zip(seen, sent, strict=True):
                answers[place] = answer
        raise DependencyDown("segments of the ledger are appended faster than they can be read")

    async def _looks(self, entries: Sequence[LedgerEntry]) -> list[_Look | str]:
        """A look for each entry, or why there is none: what cannot be read holds up no other entry."""
        found: list[_Look | str] = []
        num_failed, problem = 0, ""
        for entry in entries:
            try:
                found.append(problem if num_failed == _MAX_FAILED_LOOKS else await self._look(entry))
            except DependencyDown as error:
                num_failed, problem = num_failed + 1, error.message
                found.append(problem)
        return found

    async def _look(self, entry: LedgerEntry) -> _Look:
        """Look into segments for a request that may be in one."""
        if self._segments is None:
            raise DependencyDown("entries of this time are in segments, and this gateway has no object store")
        num_segments, refs = await self._chain.refs_of_day(entry.day)
        found = await self._segments.find(refs, entry.tenant, (entry.tag.arrived_unix_ms, entry.request_id))
        if found is None:
            return _Look(num_segments)
        return _Look(num_segments, found[0], found[1].text)

    async def _send(self, entries: Sequence[tuple[LedgerEntry, _Look | None]]) -> list[Answer]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for begin in range(0, len(entries), _MAX_ENTRIES):
                call = _Call(self._head, self._kept_s)
                for entry, look in entries[begin : begin + _MAX_ENTRIES]:
                    call.add(entry, look)
                await self._script(call.keys, call.args, pipeline=pipeline)
            found: list[Any] = await pipeline.execute()
        lines = [line.partition(" ") for text in found for line in str(text).split("\n")]
        return [(outcome, due) for outcome, _, due in lines]


class _Call:
    """Keys and arguments of one script; a key that several entries have is named once."""

    def __init__(self, head: str, kept_s: Sequence[int]) -> None:
        self._head = head
        self.keys = [f"{head}:{name}" for name in ("tenants", "chain", "open")]
        self.args: list[str | float] = [*kept_s]
        self._places: dict[object, int] = {}

    def add(self, entry: LedgerEntry, look: _Look | None) -> None:
        """Append an entry."""
        day, window = entry.day, window_of(entry)
        self.args += [
            self._day(entry.tenant, day), self._window(entry, window), entry.request_id, entry.rank,
            entry_to_text(entry), entry.tenant, day, entry.tag.arrived_unix_ms, window.field,
            "" if look is None else f"{look.num_segments} {look.number} {look.text}",
        ]  # fmt: skip

    def _day(self, tenant: str, day: str) -> int:
        if (place := self._places.get((tenant, day))) is None:
            parts = ("entries", "sums", "spans", "order", "corrects")
            keys = [f"{self._head}:{part}:{tenant}:{day}" for part in parts]
            place = self._put((tenant, day), [*keys, f"{self._head}:spend:{tenant}"])
        return place

    def _window(self, entry: LedgerEntry, name: WindowName) -> int:
        # one that is in no window has the place of the entry that it may replace, by its arrival
        own = (name, None if name.window_s else entry.tag.arrived_unix_ms)
        if (place := self._places.get(own)) is None:
            place = self._put(own, window_keys(self._head, entry))
        return place

    def _put(self, name: object, keys: Sequence[str]) -> int:
        place = self._places[name] = len(self.keys) + 1  # as Lua counts
        self.keys += keys
        return place
