"""Windows of promises as the store has them: their names, those that missed, and the p99s of single ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from stratos.common.changed import record
from stratos.core.ledger.entry import LedgerEntry, day_of
from stratos.core.ledger.steps import bound_us
from stratos.core.ledger.windows import PromiseWindow
from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.ledger.window_scripts import FIELDS, LOOK, PART_S
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_COUNTS = ("num_ttft", "num_ttft_over", "num_itl", "num_itl_over", "stake", "credit")


@record(frozen=True, slots=True, kw_only=False)
class WindowName:
    """Which window of which tenant."""

    tenant: str
    plan: str
    window_s: int
    number: int

    @property
    def field(self) -> str:
        """Its name among those of a tenant."""
        return f"{self.plan}|{self.window_s}|{self.number}"

    @property
    def end_unix_s(self) -> int:
        """Its end."""
        return (self.number + 1) * self.window_s

    def keys(self, head: str) -> list[str]:
        """Where it is in Redis: windows, missed windows, histogram."""
        return _keys(head, self, self.number * self.window_s)


@dataclass(frozen=True, slots=True)
class SeenWindow:
    """A window at the time of a look."""

    window: PromiseWindow
    is_counted: bool
    """The caller is to count it, as the first one that looked after its end."""


def window_of(entry: LedgerEntry) -> WindowName:
    """The window of an entry; of one that is in none, a name that there is no window of."""
    window_s = 0 if entry.window is None else entry.window.window_s
    number = entry.tag.arrived_unix_ms // (1000 * window_s) if window_s else 0
    return WindowName(entry.tenant, entry.plan, window_s, number)


def window_keys(head: str, entry: LedgerEntry) -> list[str]:
    """Where the window of an entry is; of one that is in none, that of the entry whose place it takes."""
    return _keys(head, window_of(entry), entry.tag.arrived_unix_ms // 1000)


def _keys(head: str, name: WindowName, unix_s: int) -> list[str]:
    """By a time in the window: no window is of two days, or of two parts of one."""
    return [
        f"{head}:windows:{name.tenant}:{unix_s // PART_S}",
        missed_key(head, name.tenant, day_of(unix_s * 1000)),
        f"{head}:histogram:{name.tenant}:{name.field}",
    ]


def missed_key(head: str, tenant: str, day: str) -> str:
    """The windows of a day that missed."""
    return f"{head}:missed:{tenant}:{day}"


def windows_of_day(stored: Mapping[str, str]) -> list[PromiseWindow]:
    """Windows as they are stored, in order of time.

    Raises:
        ValueError: something else is there.
    """
    return sorted(
        (_window(field, text) for field, text in stored.items()), key=lambda one: (one.begin_unix_ms, one.plan)
    )


class WindowStore:
    """Looks at single windows.

    Args:
        redis: with decoded answers.
        config: where records lie.
        store_id: of the store that is asked; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, store_id: StoreId = any_store) -> None:
        self._redis = redis
        self._head = f"{config.prefix}:ledger"
        self._look = GuardedScript(redis, config, LOOK, store_id)

    async def look(self, names: Mapping[WindowName, bool]) -> dict[WindowName, SeenWindow]:
        """Find windows with their p99s; those that are there no more are left out.

        Args:
            names: and of each whether it is over, so that it is to be counted.

        Raises:
            DependencyDown: Redis does not answer; or it is not the store.
        """
        if not names:
            return {}
        with translate_redis_errors():
            async with self._redis.pipeline(transaction=False) as pipeline:
                for name, is_over in names.items():
                    await self._look(name.keys(self._head), [name.field, int(is_over)], pipeline=pipeline)
                found: list[Any] = await pipeline.execute()
        return {
            name: SeenWindow(_window(name.field, one[0]), bool(one[1]))
            for name, one in zip(names, found, strict=True)
            if one
        }


def _window(field: str, text: str) -> PromiseWindow:
    plan, window_s, number = field.split("|")
    values = dict(zip(FIELDS, map(int, text.split(",")), strict=True))
    return PromiseWindow(
        plan=plan,
        window_s=int(window_s),
        number=int(number),
        ttft_p99_us=_p99_us(values["ttft_p99"]),
        itl_p99_us=_p99_us(values["itl_p99"]),
        **{name: values[name] for name in _COUNTS},
    )


def _p99_us(step: int) -> int | None:
    return bound_us(step) if step >= 0 else None
