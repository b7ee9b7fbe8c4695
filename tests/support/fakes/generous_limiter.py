"""A limiter without limits, for what is settled in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stratos_gateway.limits.headers import LimitStanding


@dataclass
class GenerousLimiter:
    """Takes every claim, and its own reservation hears what is settled."""

    standings: Sequence[LimitStanding] = ()
    state: Sequence[object] = ()
    claims: Sequence[object] = ("all",)
    settled: list[int] = field(default_factory=list)

    def claim(self, tenant: object, cost: object) -> GenerousLimiter:
        return self

    async def take(self, reservation: GenerousLimiter) -> None: ...

    def settle(self, num_tokens: int) -> None:
        self.settled.append(num_tokens)
