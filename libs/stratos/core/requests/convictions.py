"""Prompts that are refused for a while, because workers were lost as they began there.

A conviction names a tenant and a keyed hash of the prompt, so that it hits no other tenant and tells nothing of the
prompt to those that hand it on.  Tables are bounded: a tenant has a share of its own, so that it cannot push out the
convictions of others.

Tables exchange what is new: each entry has a number, the reader remembers the last one it has seen (its cursor).  What
a table knows already it ignores, so that entries do not travel in circles.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from stratos.common.errors import PromptRefused

REFUSED_AFTER_S = 30.0
SUSPECT_AFTER = 3
"""Convictions of one tenant that hold at once, after which each of its prompts begins as a suspect.  A conviction names
one prompt, and one that differs in a token is another: without this each would cost two workers more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvictionConfig:
    """Prompts that are refused because workers were lost as they began there."""

    ttl_s: Annotated[float, Gt(0)] = 600.0
    """How long such a prompt is refused."""
    max_per_tenant: Annotated[int, Ge(1)] = 256
    """Convictions of one tenant; above it the oldest one goes."""
    max_total: Annotated[int, Ge(1)] = 16_384
    """Convictions of all tenants; above it the oldest one of the tenant with the most goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conviction:
    """One prompt of one tenant."""

    tenant: str
    prompt_digest: bytes
    left_s: float
    """Seconds for which it is still refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvictionUpdate:
    """Update from one table to another: the same in both directions."""

    incarnation: str = ""
    """Incarnation of the router; in a question the one that gave the cursor."""
    cursor: int = 0
    """In a question the last number that was seen, in an answer the last one there is."""
    convictions: tuple[Conviction, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    expires_s: float


class ConvictionTable:
    """Convictions that hold; time is passed in, as monotonic seconds."""

    def __init__(self, config: ConvictionConfig) -> None:
        self._config = config
        self._tenants: dict[str, OrderedDict[bytes, _Entry]] = {}
        self._num_entries = 0
        self.version = 0
        """Number of the newest entry."""

    def __len__(self) -> int:
        return self._num_entries

    def add_all(self, convictions: Iterable[Conviction], now_s: float) -> list[Conviction]:
        """Take convictions over; returns those that were not known."""
        self.expire(now_s)
        return [conviction for conviction in convictions if self._add(conviction, now_s)]

    def _add(self, conviction: Conviction, now_s: float) -> bool:
        entries = self._tenants.get(conviction.tenant)
        if conviction.left_s <= 0 or (entries is not None and conviction.prompt_digest in entries):
            return False
        if entries is not None and len(entries) >= self._config.max_per_tenant:
            self._drop_oldest(conviction.tenant)
        elif self._num_entries >= self._config.max_total:
            self._drop_oldest(max(self._tenants, key=lambda tenant: len(self._tenants[tenant])))
        self.version += 1
        entry = _Entry(self.version, now_s + min(conviction.left_s, self._config.ttl_s))
        self._tenants.setdefault(conviction.tenant, OrderedDict())[conviction.prompt_digest] = entry
        self._num_entries += 1
        return True

    def holds(self, tenant: str, prompt_digest: bytes, now_s: float) -> bool:
        """Whether the prompt is refused now."""
        entries = self._tenants.get(tenant)
        entry = None if entries is None else entries.get(prompt_digest)
        return entry is not None and now_s < entry.expires_s

    def suspects(self, tenant: str, now_s: float) -> bool:
        """Whether so many convictions of a tenant hold that all of its prompts are suspects."""
        entries = self._tenants.get(tenant)
        if entries is None or len(entries) < SUSPECT_AFTER:
            return False
        return sum(entry.expires_s > now_s for entry in entries.values()) >= SUSPECT_AFTER

    def since(self, number: int, now_s: float) -> tuple[Conviction, ...]:
        """Convictions that came after the one with ``number``, oldest first."""
        if number >= self.version:
            return ()
        found = [
            (entry.number, Conviction(tenant=tenant, prompt_digest=digest, left_s=entry.expires_s - now_s))
            for tenant, entries in self._tenants.items()
            for digest, entry in entries.items()
            if entry.number > number and entry.expires_s > now_s
        ]
        return tuple(conviction for _, conviction in sorted(found, key=lambda item: item[0]))

    def expire(self, now_s: float) -> None:
        """Forget what holds no longer."""
        if not self._num_entries:
            return
        for tenant, entries in list(self._tenants.items()):
            for digest in [digest for digest, entry in entries.items() if entry.expires_s <= now_s]:
                self._remove(tenant, digest)

    def _drop_oldest(self, tenant: str) -> None:
        self._remove(tenant, next(iter(self._tenants[tenant])))

    def _remove(self, tenant: str, digest: bytes) -> None:
        del self._tenants[tenant][digest]
        self._num_entries -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]


def prompt_refused() -> PromptRefused:
    """The answer to a convicted prompt."""
    return PromptRefused(
        "workers were lost as this prompt began there; it is refused for some minutes", after_s=REFUSED_AFTER_S
    )
