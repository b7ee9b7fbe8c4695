"""The largest load that is borne, by doubling it until it is not and halving the space in between.

It assumes that a load above one that is not borne is not borne either.  Near the limit chance decides, so the answer is
as sharp as ``ratio`` and no sharper: two searches may end at neighbouring loads.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Loads that may be tried."""

    least: float
    most: float
    ratio: float = 1.1
    """The search ends when the smallest load that is not borne is less than this times the largest that is."""
    is_whole: bool = False
    """Loads are whole numbers; the search ends at neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """Where the limit lies."""

    borne: float | None
    """Largest load that was borne; ``None`` where not even the least was."""
    not_borne: float | None
    """Smallest load that was not; ``None`` where even the most was borne."""


async def find_limit(space: SearchSpace, is_borne: Callable[[float], Awaitable[bool]]) -> Bracket:
    """Try loads until the limit is known; each load is tried once."""
    borne, not_borne, load = None, None, space.least
    while True:
        if await is_borne(load):
            borne = load
        else:
            not_borne = load
        following = _next_load(space, borne, not_borne)
        if following is None:
            return Bracket(borne=borne, not_borne=not_borne)
        load = following


def _next_load(space: SearchSpace, borne: float | None, not_borne: float | None) -> float | None:
    if borne is None:
        return None
    if not_borne is None:
        return None if borne >= space.most else min(2 * borne, space.most)
    if space.is_whole:
        return None if not_borne - borne <= 1 else float((int(borne) + int(not_borne)) // 2)
    return None if not_borne / borne < space.ratio else float(f"{math.sqrt(borne * not_borne):.4g}")
