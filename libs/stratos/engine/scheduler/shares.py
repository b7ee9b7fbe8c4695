"""How prompts share one step: by class, then by tenant, then between a tenant's first prompt and its others.

    class     a higher one takes what it can use, a lower one what is left
    tenant    those of a class get equal tokens: in the step where each gets a block, over steps where they take turns
    prompt    the first in the order of service takes the tenant's part, but for ``short_prompt_ratio`` of it, which
              goes to the others, fewest tokens first: a short prompt does not wait for a long one before it
    passed    a prompt that got nothing in ``max_passed_steps`` steps gets a block before all of that

Nothing starves: the first prompt of each tenant always goes on, every prompt becomes the first when those before it are
done, and what classes above pass is passed for a bounded number of steps.  Only numbers of tokens are decided here; who
is admitted, and memory, are the scheduler's.

Worked example, 512 tokens, blocks of 16: tenant a has 32 K tokens and then 40, tenant b has 100.  b needs 100 and gets
them; a's first prompt takes 3/4 of the other 412 and what its 40 leave of the rest: 372 + 40.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from stratos.engine.scheduler.order import OrderKey
from stratos.engine.sequence import Sequence
from stratos.engine.settings import SchedulerConfig

_Group = tuple[int, str]
"""Class and tenant."""


class PromptClaim(NamedTuple):
    """A prompt that could use a step."""

    key: OrderKey
    sequence: Sequence
    need: int
    """Tokens that it has to compute."""

    @property
    def group(self) -> _Group:
        return self.key.service_class, self.sequence.terms.tenant


class _Division:
    """Tokens given so far, and what is left of the step."""

    def __init__(self, room: int) -> None:
        self.left = room
        self.counts: dict[Sequence, int] = {}

    def wanted(self, claim: PromptClaim) -> int:
        return claim.need - self.counts.get(claim.sequence, 0)

    def give(self, claim: PromptClaim, max_count: int) -> int:
        count = max(0, min(self.wanted(claim), max_count, self.left))
        if count:
            self.counts[claim.sequence] = self.counts.get(claim.sequence, 0) + count
            self.left -= count
        return count


class PromptShares:
    """Divides steps; remembers what each tenant got while it had prompts."""

    def __init__(self, config: SchedulerConfig, block_size: int) -> None:
        self._ratio, self._max_passed = config.short_prompt_ratio, config.max_passed_steps
        self._block_size = block_size
        self._served: dict[_Group, int] = {}
        self._num_steps = 0

    def divide(self, claims: Iterable[PromptClaim], room: int) -> dict[Sequence, int]:
        """Tokens for each prompt that gets some of ``room``; changes nothing."""
        division, ordered = _Division(room), sorted(claims)
        overdue = [claim for claim in ordered if claim.sequence.num_passed_steps >= self._max_passed]
        limit = max(self._block_size, int(room * self._ratio))
        for claim in sorted(overdue, key=lambda c: -c.sequence.num_passed_steps):
            limit -= division.give(claim, min(limit, self._block_size))
        for _, members in groupby(ordered, key=lambda c: c.key.service_class):
            if division.left <= 0:
                break
            self._divide_class(list(members), division)
        return division.counts

    def note(self, claims: Iterable[PromptClaim], counts: dict[Sequence, int]) -> None:
        """Take note of a step: its prompts, and what each of them got."""
        known = [self._served[claim.group] for claim in claims if claim.group in self._served]
        floor = min(known, default=0)  # who comes back after a pause has saved nothing up
        served: dict[_Group, int] = {}
        for claim in claims:
            count = counts.get(claim.sequence, 0)
            claim.sequence.num_passed_steps = 0 if count else claim.sequence.num_passed_steps + 1
            served[claim.group] = served.get(claim.group, self._served.get(claim.group, floor)) + count
        self._served = served
        self._num_steps += 1

    def _divide_class(self, claims: list[PromptClaim], division: _Division) -> None:
        tenants: dict[_Group, list[PromptClaim]] = {}
        for claim in claims:
            tenants.setdefault(claim.group, []).append(claim)
        groups = list(tenants)
        if division.left // len(groups) >= self._block_size:
            # the smallest wish first, so that what it leaves goes to the others
            groups.sort(key=lambda group: sum(division.wanted(claim) for claim in tenants[group]))
        else:
            groups.sort(key=lambda group: self._served.get(group, 0))
        for num_after, group in zip(range(len(groups) - 1, -1, -1), groups, strict=True):
            quota = max(self._block_size, division.left // (num_after + 1))
            self._divide_tenant(tenants[group], min(quota, division.left), division)
        for group in groups:
            self._divide_tenant(tenants[group], division.left, division)

    def _divide_tenant(self, claims: list[PromptClaim], quota: int, division: _Division) -> None:
        wanting = [claim for claim in claims if division.wanted(claim)]
        if not wanting or quota <= 0:
            return
        first, others = wanting[0], sorted(wanting[1:], key=division.wanted)
        quota -= division.give(first, quota - (self._kept_for_others(quota) if others else 0))
        for claim in others:
            quota -= division.give(claim, quota)
        division.give(first, quota)

    def _kept_for_others(self, quota: int) -> int:
        """Tokens of a tenant's part that its first prompt leaves; too small a part goes to them in one step of some."""
        if self._ratio == 0:
            return 0
        if quota < 2 * self._block_size:
            return quota if self._num_steps % max(2, round(1 / self._ratio)) == 1 else 0
        return min(max(self._block_size, int(quota * self._ratio)), quota - self._block_size)
