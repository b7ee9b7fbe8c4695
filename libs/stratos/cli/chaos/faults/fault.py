"""All faults by their names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

import psutil

from stratos.cli.chaos.faults.clock import clock
from stratos.cli.chaos.faults.contract import Breakable, NoEffect, Proof, Strike
from stratos.cli.chaos.faults.cuts import cut_redis, cut_workers, partition, reset
from stratos.cli.chaos.faults.disk_tier import corrupt_disk
from stratos.cli.chaos.faults.host_tier import corrupt_tier
from stratos.cli.chaos.faults.kv_bytes import corrupt
from stratos.cli.chaos.faults.leaving import drain
from stratos.cli.chaos.faults.processes import kill, slow, stop
from stratos.cli.chaos.faults.shortages import full_disk, short_memory
from stratos.cli.chaos.faults.store_away import gone
from stratos.common.errors import BadRequest

FAULTS: Mapping[str, Callable[[Strike], Awaitable[Proof]]] = MappingProxyType(
    {
        "kill": kill,
        "stop": stop,
        "drain": drain,
        "slow": slow,
        "reset": reset,
        "partition": partition,
        "cut-redis": cut_redis,
        "cut-workers": cut_workers,
        "corrupt": corrupt,
        "corrupt-tier": corrupt_tier,
        "corrupt-disk": corrupt_disk,
        "full-disk": full_disk,
        "memory": short_memory,
        "gone": gone,
        "clock": clock,
    }
)
MOVING = ("kill", "stop", "drain", "partition")
"""Streams of a decode worker that suffers these go on elsewhere."""
SILENT = ("stop", "partition", "cut-workers")
"""A gateway that suffers these tells its clients nothing more."""
LOSING = ("kill", "reset", *SILENT)
"""Clients of a gateway that suffers these have to come back."""
OF_GATEWAYS = (*LOSING, "drain", "cut-redis", "full-disk", "clock")
SWEEPING = ("drain-node",)
"""Strike whatever runs there, gateways too."""
STORE = "object-store"
"""The only target of ``gone``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repertoire:
    """Faults that a kind of platform can suffer."""

    kinds: Collection[str]
    of_gateways: Collection[str]
    of_decode: Collection[str]
    """Faults that a decode worker suffers besides ``kill`` and ``stop``, where nothing was asked for."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Others, and why not."""


LOCAL = Repertoire(
    kinds=tuple(FAULTS),
    of_gateways=OF_GATEWAYS,
    of_decode=("drain", "slow", "reset", "partition", "corrupt", "full-disk", "memory", "clock"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, and what it strikes."""

    kind: str
    """One of a repertoire; locally a name in ``FAULTS``."""
    target: str
    """Name of a process of the platform, ``STORE``, or ``NOTHING``."""
    lasting_s: float = 4.0
    """How long it goes on; ``kill``, ``drain`` and ``reset`` are moments."""

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"

    @classmethod
    def parse(cls, text: str, repertoire: Repertoire = LOCAL) -> Self:
        """A fault from its name, e.g. "kill decode-0".

        Raises:
            BadRequest: it is none.
        """
        kind, _, target = text.strip().partition(" ")
        if kind in repertoire.refused:
            raise BadRequest(f"{text.strip()!r}: {repertoire.refused[kind]}")
        is_store = "gone" in repertoire.kinds and target.strip() == STORE
        if kind not in repertoire.kinds or not target.strip() or (kind == "gone") != is_store:
            raise BadRequest(
                f"{text!r} is no fault; write one of {', '.join(repertoire.kinds)}, and a process's name"
                f"{f' ({STORE} for gone)' if 'gone' in repertoire.kinds else ''}"
            )
        return cls(kind, target.strip())

    async def strike(self, place: Breakable, in_effect: asyncio.Event) -> Proof:
        """Inject and wait for the fault's end; returns the proof.

        Raises:
            NoEffect: there is none.
        """
        try:
            return await FAULTS[self.kind](Strike(self.target, self.lasting_s, place, in_effect))
        except (psutil.Error, OSError) as error:
            raise NoEffect(f"{self.target} could not be disturbed to the end: {error!r}") from error
