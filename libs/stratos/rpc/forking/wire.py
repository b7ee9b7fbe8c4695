"""Requests of a supervisor to its fork server, and their answers: one packet each, files beside the request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

MAX_PACKET = 128 * 1024
MAX_FDS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """One process. The file of its log comes first beside it, then its listeners."""

    number: int
    """Number of the request; the answer names it."""
    module: str
    """Package whose ``__main__.main`` is run."""
    name: str
    """Name of the process, as ``ps`` and ``top`` show it."""
    env: Mapping[str, str]
    """Added to the environment of the fork server."""
    listeners: tuple[int, ...] = ()
    """Numbers under which the process finds its listeners."""

    def to_packet(self) -> bytes:
        """Raises ``ValueError`` where it is too large for a packet."""
        packet = json.dumps(asdict(self)).encode()
        if len(packet) > MAX_PACKET or len(self.listeners) >= MAX_FDS:
            raise ValueError(f"{self.name} has too large an environment, or too many listeners, to be forked")
        return packet

    @classmethod
    def from_packet(cls, packet: bytes) -> ForkRequest:
        fields: dict[str, Any] = json.loads(packet)
        return cls(**{**fields, "listeners": tuple(fields["listeners"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """The answer to a request; ``pid`` is 0 where the system gave no process, and ``problem`` says why."""

    number: int
    pid: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process is gone; ``code`` is below 0 where a signal ended it."""

    pid: int
    code: int


def to_packet(news: Forked | Ended) -> bytes:
    """For the supervisor."""
    return json.dumps(asdict(news)).encode()


def from_packet(packet: bytes) -> Forked | Ended:
    """From the fork server."""
    fields: dict[str, Any] = json.loads(packet)
    return Forked(**fields) if "number" in fields else Ended(**fields)
