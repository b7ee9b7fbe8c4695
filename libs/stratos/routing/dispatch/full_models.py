"""Models whose workers have no batch slot left, so that a long queue is not tried against them one by one.

The shortcut is exact.  When a request was refused for want of batch slots alone, every request that needs as many batch
slots, no more KV and no other features, and to which no other worker is closed, is refused for the same reason until
the fleet changes.  When one sequence was too many and no worker is kept for a request, none at all can be placed; but
the lowest class may find room at spot workers, which were no candidates of the classes above.
"""

from __future__ import annotations

import math

from stratos.core.placement import Work
from stratos.routing.admission import Ask
from stratos.routing.filters import Rejection
from stratos.routing.picker import Refusal
from stratos.routing.queueing.ticket import PlacementVerdict

_NOT_CANDIDATES = frozenset(
    {Rejection.MODEL, Rejection.OUT, Rejection.SPOT, Rejection.RESERVED, Rejection.CLEAR, Rejection.BATCH_SLOTS}
)


class FullModels:
    """Refusals for want of batch slots at one version of the fleet."""

    def __init__(self) -> None:
        self._version: float = math.nan
        self._refused: dict[tuple[str, Work, frozenset[str], bool], Ask] = {}
        self._has_spot = False
        """A refused one was kept from spot workers, which may have room for others."""

    def learn(self, ask: Ask, refusal: Refusal, version: int) -> None:
        """A request was refused."""
        if version != self._version:
            self._version = version
            self._refused.clear()
            self._has_spot = False
        if (
            not _is_choosy(ask)
            and not ask.is_share_bound
            and refusal.is_blocked
            and refusal.rejections.keys() <= _NOT_CANDIDATES
        ):
            self._refused[_key(ask)] = ask
            self._has_spot |= refusal.rejections[Rejection.SPOT] > 0

    def verdict(self, ask: Ask, version: int) -> PlacementVerdict | None:
        """The verdict that follows from an earlier refusal; ``None`` when the request has to be tried."""
        refused = self._refused.get(_key(ask)) if version == self._version else None
        if refused is None:
            return None
        if refused.num_slots == 1 and not ask.closed and not self._has_spot:
            return PlacementVerdict.FULL
        is_covered = (
            not _is_choosy(ask)
            and ask.request.required_features <= refused.request.required_features
            and ask.num_slots == refused.num_slots
            and ask.request.max_output_tokens_total <= refused.request.max_output_tokens_total
            and ask.request.num_prompt_tokens <= refused.request.num_prompt_tokens
            and ask.request.is_resumed >= refused.request.is_resumed
            and not ask.request.terms.adapter.digest
        )
        return PlacementVerdict.BLOCKED if is_covered else None


def _key(ask: Ask) -> tuple[str, Work, frozenset[str], bool]:
    return ask.request.model_digest, ask.request.work, ask.closed, ask.request.takes_spot


def _is_choosy(ask: Ask) -> bool:
    return bool(ask.request.excluded_incarnations or ask.request.refusals)
