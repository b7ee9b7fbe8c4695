"""Who else takes from a gateway's buckets: by Redis, and without it by what the others themselves say. No I/O.

What is heard of a third gateway is told to no fourth one, and who asks no more is forgotten: gateways that start again
and again without Redis, each time under a new name, would have shares for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratos.common.clock import Clock
from stratos_gateway.limits.own_share import shares_buckets

NOTED_S = 30.0
"""A gateway that Redis did not name counts for so long after it asked last. It asks each second."""


class KnownGateways:
    """Names; those of other models take from none of these buckets and are left out.

    Args:
        own: name of this gateway.
        clock: monotonic.
    """

    def __init__(self, own: str, clock: Clock) -> None:
        self.own = own
        self._clock = clock
        self._told = frozenset([own])
        self._noted: dict[str, float] = {}
        """Spoke to this one, by when."""
        self._learned: dict[str, float] = {}
        """Named by the others, by when."""

    @property
    def all(self) -> frozenset[str]:
        """All that count, this one included."""
        return self._told | self._of_now(self._noted).keys() | self._learned.keys()

    @property
    def at_first_hand(self) -> Sequence[str]:
        """Names that others are told of, this one first."""
        return [self.own, *sorted((self._told | self._of_now(self._noted).keys()) - {self.own})]

    def on_told(self, names: Iterable[str]) -> frozenset[str]:
        """Take it from Redis, which ends what others said; returns those of this model."""
        self._told, self._noted, self._learned = self._of_model(names), {}, {}
        return self._told

    def note(self, names: Iterable[str]) -> None:
        """Another gateway asks, and says whom Redis named to it."""
        self._noted |= dict.fromkeys(self._of_model(names), self._clock.now())

    def learn(self, answers: Iterable[Sequence[str]]) -> None:
        """Others answered, each with its own name first; where none does, what they said before stays."""
        for names in answers:
            self.note(names[:1])
            self._learned |= dict.fromkeys(self._of_model(names), self._clock.now())
        self._learned = self._of_now(self._learned)

    def _of_now(self, found: dict[str, float]) -> dict[str, float]:
        return {name: at for name, at in found.items() if self._clock.now() - at <= NOTED_S}

    def _of_model(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(name for name in names if shares_buckets(self.own, name))
