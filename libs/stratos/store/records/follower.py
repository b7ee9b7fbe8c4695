"""Keeps a snapshot up to date with the records in Redis: one task per process.

Each turn takes one look at the marker, which costs the same however many records there are; then it reads the changes
that it names, or everything where changes were missed.  Everything is read again at times, as a check, in pages between
which the process goes on; texts whose version is known are not decoded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from stratos.common.background import happens
from stratos.common.clock import Clock
from stratos.common.errors import BadRequest, DependencyDown
from stratos.store.records.followed_snapshot import FollowedSnapshot, Look, Malformed, Marker, SnapshotState
from stratos.store.records.record import Record, version_of
from stratos.store.records.record_store import RecordStore, read_record
from stratos.store.records.settings import SnapshotConfig
from stratos.store.records.snapshot_copy import SnapshotCopy

_log = logging.getLogger(__name__)
_MIN_GAP_S = 0.02
"""Between two looks, however many callers ask for one: unknown keys in numbers load Redis no more than this."""
_RELOAD_GAP_S = 5.0
"""Between two reads of everything from a store that lacks records each time."""
_CATCH_UP_S = 0.9
"""Callers promise an answer within one second."""
_FOREIGN = "Redis holds another store, or lost its own: what is known goes on serving, writes are refused"
_UNMARKED = "Redis has no store marker: never set up (`stratos admin init-store`), or emptied (`adopt-store`)"


@dataclass(slots=True)
class _Turn:
    """A look at the store that callers may wait for."""

    done: asyncio.Event


class SnapshotFollower:
    """Follows one store.

    Args:
        snapshot: what is kept up to date.
        store: where the records lie.
        clock: age of the snapshot.
        config: how often.
    """

    def __init__(self, snapshot: FollowedSnapshot, store: RecordStore, clock: Clock, config: SnapshotConfig) -> None:
        self.snapshot = snapshot
        self._store = store
        self._clock = clock
        self._config = config
        self._wanted = asyncio.Event()
        self._has_looked = asyncio.Event()
        self._next_turn = _Turn(asyncio.Event())
        self._full_pass_due_s = 0.0
        self._reload_due_s = 0.0
        self._said = ""
        self._epoch_s: float | None = None
        self._listeners: list[Callable[[], None]] = []
        self.num_full_reads = 0
        """Reads of everything that were begun."""

    @property
    def is_following(self) -> bool:
        """The snapshot is complete: a record that it does not know does not exist."""
        return self.snapshot.state is SnapshotState.FOLLOWING

    @property
    def age_s(self) -> float:
        """Seconds since the followed store last confirmed the snapshot."""
        return self.snapshot.age_s(self._clock.now())

    def unix_s(self) -> float:
        """Seconds since the epoch by the store's clock, the one by which ends of keys are set; without it by our own.

        Two machines may differ in what time it is, and a key ends once.
        """
        return time.time() if self._epoch_s is None else self._clock.now() + self._epoch_s

    @property
    def is_past_bound(self) -> bool:
        """A revocation may have been missed for longer than the bound that was set."""
        return self.age_s > self._config.revocation_bound_s

    @property
    def refuses(self) -> bool:
        """Keys are not to be accepted: the snapshot is past its bound, and that is what was set for this case."""
        return self._config.past_bound == "refuse" and self.is_past_bound

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each turn in which a record changed, or a copy was taken; it must not raise."""
        self._listeners.append(listener)

    def not_ready_reason(self) -> str:
        """Why nothing can be served from the snapshot; "" once it is complete."""
        return "" if self.snapshot.is_complete else "tenants and keys were not loaded yet"

    def restore(self, copy: SnapshotCopy, unix_s: float) -> None:
        """Start from a copy; the store is looked at all the same.

        Args:
            copy: from a file, or from another process.
            unix_s: now, by the clock of the machine that made it: says how old the copy is.
        """
        age_s = max(0.0, unix_s - copy.confirmed_unix_s)
        self.snapshot.restore(copy.store_id, copy.revision, copy.records, self._clock.now() - age_s)
        self._tell()

    async def run(self) -> None:
        """Root task of a process that serves from the snapshot."""
        # The Redis client sometimes swallows a cancellation that comes in the middle of a command.
        while not _is_cancelled():
            turn, self._next_turn = self._next_turn, _Turn(asyncio.Event())
            self._wanted.clear()
            await self.look()
            turn.done.set()
            self._has_looked.set()
            await asyncio.sleep(_MIN_GAP_S)
            await happens(self._wanted, self._config.poll_s)
        raise asyncio.CancelledError

    async def first_look(self) -> None:
        """Wait until the store was looked at once, with or without success."""
        await self._has_looked.wait()

    async def catch_up(self) -> bool:
        """Look at the store for what the snapshot lacks; false where it cannot be followed now.

        Returns once a look that began after this call has ended; at once while the store cannot be followed.
        """
        if not self.is_following:
            return False
        turn = self._next_turn
        self._wanted.set()
        return await happens(turn.done, _CATCH_UP_S) and self.is_following

    async def look(self) -> None:
        """One turn: read what has changed; an outage changes nothing but the snapshot's state."""
        num_before = self.snapshot.num_merged
        try:
            await self._look()
        except (DependencyDown, BadRequest, RedisError) as error:
            self.snapshot.lose()
            self._say(f"tenants, keys and adapters are not followed: {error}")
        if self.snapshot.num_merged != num_before:
            self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    async def _look(self) -> None:
        now, seen = self._clock.now(), self.snapshot.position
        marker = await self._store.marker()
        look = self.snapshot.observe(marker, now)
        if marker is None or (self.snapshot.state is SnapshotState.FOREIGN and look is Look.NOTHING):
            self._say(_FOREIGN if self.snapshot.is_complete else _UNMARKED)
            return
        if seen is not None and marker.revision < seen:  # it came back older
            marker = await self._store.count_on(marker, seen)
        if look is Look.CHANGES and not await self._read_changes(marker):
            look = Look.EVERYTHING
        if (look is Look.EVERYTHING and now >= self._reload_due_s) or self._is_full_pass_due(now):
            await self._read_everything(marker)
        if self.is_following:
            self._say("")

    def _is_full_pass_due(self, now: float) -> bool:
        return self.is_following and now >= self._full_pass_due_s

    async def _read_changes(self, marker: Marker) -> bool:
        assert self.snapshot.position is not None, "changes are read from a position"
        changes = await self._store.changes(self.snapshot.position)
        for change in changes:
            self._report(change.content)
        return self.snapshot.read(changes, marker, self._clock.now())

    async def _read_everything(self, marker: Marker) -> None:
        if not self.snapshot.is_complete:
            await self._store.check_server()
        self.num_full_reads += 1
        self._epoch_s = await self._store.now_us() / 1e6 - self._clock.now()
        self.snapshot.begin_load(marker)
        async for page in self._store.everything():
            for kind, record_id, text in page:
                known = self.snapshot.get(kind, record_id)
                is_known = known is not None and known.version == version_of(text)
                content = known if known is not None and is_known else read_record(kind, record_id, text)
                self._report(content)
                self.snapshot.merge(content)
            await asyncio.sleep(0)
        is_whole = self.snapshot.end_load(self._clock.now())
        self._full_pass_due_s = self._clock.now() + self._config.full_pass_s
        if not is_whole:
            self._reload_due_s = self._clock.now() + _RELOAD_GAP_S
            self._say("Redis has lost records: what is known goes on serving, writes are refused")
        elif self.snapshot.num_missing:
            _log.warning("%d records that are known here are missing or older in Redis", self.snapshot.num_missing)

    def _report(self, content: Record | Malformed) -> None:
        is_new = isinstance(content, Malformed) and (content.kind, content.id) not in self.snapshot.malformed
        if isinstance(content, Malformed) and is_new:
            _log.warning("the record of %s %r is skipped: %s", content.kind.value, content.id, content.reason)

    def _say(self, problem: str) -> None:
        """Log a change of what stands against following, once."""
        if problem and problem != self._said:
            _log.warning("%s", problem)
        elif self._said and not problem:
            _log.info("tenants, keys and adapters are followed again")
        self._said = problem


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
