"""Choice of how many drafted tokens a row gets: as many as raise the tokens per second of the step, 0 included.

Expected of K drafts whose tokens are right with chance p are ``p + p^2 + ... + p^K`` more tokens; they cost what steps
of that many tokens were measured to cost.  A draft token is worth its cost where its chance of being accepted exceeds

    tokens per second of the step without it * seconds that it adds

The chance is learned per sequence from what came out, also of drafts that were not run: at length 0 a look-up costs
microseconds and shows whether its first token would have been right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from stratos.engine.scheduler.cost_model import StepCostModel, StepLoad
from stratos.engine.sequence import DraftState, Sequence
from stratos.engine.speculation.draft_purse import DraftPurse

FIRST_CHANCE = 0.6
"""Of a draft of a new sequence, before the engine has learned from others."""
RATE, COMMON_RATE = 0.15, 0.02
"""Weight of a newest draft token in a sequence's chance, and in that which new sequences begin with."""
FIRST_WEIGHT = 4
"""Draft tokens that ``FIRST_CHANCE`` counts as: a proposer that is always wrong is known after the first answer."""
NUM_TRIED, TRY_EVERY = 12, 512
"""Steps at first, and one of so many later, that run drafts whether they pay or not, since their cost is unknown; a
draft then ends where hardly a further token of it would be right."""
LEAST_TRIED = 16
"""Drafted tokens that such a step may have in any case; more only up to its other tokens."""
MOST_TRIED_ROWS = 2
"""Of such a step, where a draft model has to compute the prompt of each."""
MIN_CHANCE = 0.05
"""Chance of a drafted token below which it does not run, whatever steps seem to cost."""
MARGIN = 1.15
"""Gain over cost that a draft must promise: both are estimates."""
IDLE_OBSERVED = 16
"""One of so many steps without drafts is measured."""
EDGE_RATE = 0.1
"""Weight of the newest step in what steps took beyond the fit."""


class DraftWorth(NamedTuple):
    """Seconds of the engine."""

    cost_s: float
    saved_s: float


class DraftLengths:
    """Worth of drafts in one engine: chances by sequence, and the measured cost of decode steps."""

    def __init__(self) -> None:
        self._cost = StepCostModel()
        self._chances: dict[str, float] = {}
        self._num_learned: Counter[str] = Counter()
        self._num_steps = self._num_tried = 0
        self._beyond: dict[tuple[int, bool], float] = {}
        """Seconds beyond the fit that steps took, by their tokens without drafts, and whether they had some."""
        self.purse = DraftPurse()

    def learn(self, sequence: Sequence, state: DraftState) -> None:
        """Compare the drafts proposed last with the tokens that came."""
        if not state.proposed:
            return
        method, common = state.method, self._chances.get(state.method, FIRST_CHANCE)
        chance = state.chances.get(method, common)
        came = sequence.tokens[state.num_known : state.num_known + len(state.proposed)]
        for draft, token in zip(state.proposed, came, strict=False):
            is_right = draft == token
            self._num_learned[method] += 1
            chance += RATE * (is_right - chance)
            common += max(COMMON_RATE, 1 / (FIRST_WEIGHT + self._num_learned[method])) * (is_right - common)
            if not is_right:
                break
        state.proposed = ()
        state.chances[method], self._chances[method] = chance, common

    def chance(self, state: DraftState, method: str = "") -> float:
        """That the first token of the newest drafts is right, or of those of a method."""
        method = method or state.method
        return state.chances.get(method, self._chances.get(method, FIRST_CHANCE))

    def wants(self, num_drafted: int) -> bool:
        """Whether a step with so many drafted tokens is to be observed; asked once for each that has no prompt."""
        self._num_steps += 1
        return bool(num_drafted) or self._num_steps % IDLE_OBSERVED == 0 or self._cost.num_steps < NUM_TRIED

    def observe(self, load: StepLoad, seconds: float, num_drafted: int) -> None:
        """A step without prompts, of which so many tokens were drafted, took so long."""
        place, predicted_s = (load.tokens - num_drafted, num_drafted > 0), self._cost.predict(load)
        before_s, beyond_s = self._beyond.get(place, 0.0), seconds - predicted_s
        self._beyond[place] = before_s + EDGE_RATE * (max(-predicted_s, min(beyond_s, predicted_s)) - before_s)
        self._cost.observe(load, seconds)

    def _edge_s(self, num_tokens: int) -> float:
        """Time that a step of so many tokens takes longer with drafts, however few: where a tile of rows ends, much."""
        with_drafts, alone = (self._beyond.get((num_tokens, has_drafts), 0.0) for has_drafts in (True, False))
        return max(0.0, with_drafts - alone)

    def worth(self, load: StepLoad, num_drafted: int, num_accepted: int) -> DraftWorth:
        """Cost of the drafts of a step with this load, and what they saved, by what steps cost.

        A step of 2 streams takes 10 ms, and 11 with 4 drafted tokens, of which 3 count: they cost 1 ms and saved 15,
        since a token takes 5.
        """
        alone = StepLoad(load.tokens - num_drafted, load.kv_tokens)
        alone_s = self._cost.predict(alone)
        cost_s = max(0.0, self._cost.predict(load) - alone_s + self._edge_s(alone.tokens))
        return DraftWorth(cost_s, num_accepted * alone_s / max(1, alone.tokens))

    def choose(
        self, load: StepLoad, offered: list[tuple[float, int]], drafting_s: Callable[[int], float] | None = None
    ) -> list[int]:
        """Lengths of drafts.

        Args:
            load: of the step without drafts.
            offered: chance and longest draft of each row that has one.
            drafting_s: time to draft one token of a row, by how many rows have drafts, where they are not drafted yet.
        """
        self._num_tried += 1
        if self._is_new or self._num_tried % TRY_EVERY == 0:
            num_rows = len(offered) if drafting_s is None else MOST_TRIED_ROWS
            return _tried(offered[:num_rows], max(LEAST_TRIED, load.tokens)) + [0] * (len(offered) - num_rows)
        num_rows = len(offered)
        while True:  # a row for which alone it pays bears a whole pass of the draft model
            lengths = self._paying(load, offered, drafting_s(num_rows) if drafting_s is not None else 0.0)
            num_drafting = len(lengths) - lengths.count(0)
            if drafting_s is None or num_drafting == 0 or num_drafting >= num_rows:
                return lengths
            num_rows = num_drafting

    def _paying(self, load: StepLoad, offered: list[tuple[float, int]], drafting_s: float) -> list[int]:
        step_s, token_s = self._costs(load, drafting_s)
        if step_s <= 0:
            return [0] * len(offered)
        rate = load.tokens / step_s
        lengths = _lengths(offered, MARGIN * rate * token_s)
        faster = (load.tokens + _gained(offered, lengths)) / (step_s + sum(lengths) * token_s)
        lengths = _lengths(offered, MARGIN * max(rate, faster) * token_s)
        pays = _gained(offered, lengths) / rate > MARGIN * (sum(lengths) * token_s + self._edge_s(load.tokens))
        return lengths if pays else [0] * len(offered)

    def promised_s(self, load: StepLoad, chance: float, count: int, drafting_s: float) -> float:
        """Time that a draft of ``count`` tokens is expected to save in this step; endless while costs are unknown."""
        step_s, token_s = self._costs(load, drafting_s)
        if self._is_new or step_s <= 0:
            return math.inf
        return max(0.0, _expected(chance, count) * step_s / load.tokens - count * token_s)

    @property
    def _is_new(self) -> bool:
        return self._num_tried <= NUM_TRIED

    def _costs(self, load: StepLoad, drafting_s: float) -> tuple[float, float]:
        """Seconds of the step without drafts, and of one drafted token more."""
        step_s = self._cost.predict(load)
        return step_s, self._cost.predict(StepLoad(load.tokens + 1, load.kv_tokens)) - step_s + drafting_s


def _tried(offered: list[tuple[float, int]], most: int) -> list[int]:
    """Drafts of at least a token, while they are at most so many tokens in all."""
    lengths = []
    for (_, count), likely in zip(offered, _lengths(offered, MIN_CHANCE), strict=True):
        lengths.append(min(count, max(1, likely), most))
        most -= lengths[-1]
    return lengths


def _lengths(offered: list[tuple[float, int]], least: float) -> list[int]:
    """Tokens of each draft that are accepted with a chance above ``least``."""
    least, lengths = max(least, MIN_CHANCE), []
    for chance, most in offered:
        count, reached = 0, chance
        while count < most and reached > least:
            count, reached = count + 1, reached * chance
        lengths.append(count)
    return lengths


def _gained(offered: list[tuple[float, int]], lengths: list[int]) -> float:
    """Accepted tokens of all drafts."""
    return sum(_expected(chance, count) for (chance, _), count in zip(offered, lengths, strict=True))


def _expected(chance: float, count: int) -> float:
    """Accepted tokens of a draft."""
    return sum([chance**i for i in range(1, count + 1)])
