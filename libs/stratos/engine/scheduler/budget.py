"""How much fits into one step: the token budget, and if asked for the step time that the cost model predicts.

Decode rows always fit, since cutting them would only move the delay.  Prompts get what is left, in the order of
service.  The time protects streams: without any the token budget alone counts, and where the streams alone take most
of the time, prompts may make the step ``STRETCH`` times as long, and the first one gets at least a block.  Otherwise a
slow machine would keep prompts waiting for hundreds of steps.
"""

from __future__ import annotations

import math
import sys

from stratos.engine.scheduler.cost_model import StepCostModel, StepLoad
from stratos.engine.sequence import Sequence
from stratos.engine.settings import SchedulerConfig

COLD_TOKENS = 64
"""A step may have twice the tokens of the largest step seen, and this many at first: the fit is not trusted further."""
STRETCH = 2.0
"""A step with prompts may take so many times what its streams alone take, even beyond the time asked for."""


class StepBudget:
    """Rest of what one step may take."""

    def __init__(self, config: SchedulerConfig, cost: StepCostModel, block_size: int) -> None:
        self._config, self._cost, self._block_size = config, cost, block_size
        self._tokens_left = config.token_budget
        self._limit_s = math.inf
        self._load = StepLoad()
        self._has_prompt = False

    @property
    def is_spent(self) -> bool:
        """No prompt gets a token any more."""
        is_late = self._limit_s < math.inf and self._has_prompt and not self._fits(1, 0)
        return self._tokens_left <= 0 or is_late

    def room_for(self, sequence: Sequence) -> int:
        """Prompt tokens of this step, if they came after the computed ones of ``sequence``."""
        left = max(0, self._tokens_left)
        if self._limit_s == math.inf:
            return left
        count = self._max_tokens(sequence.num_scheduled, left)
        return count if self._has_prompt else max(count, min(self._block_size, left))

    def room_within(self, sequence: Sequence, limit_s: float) -> int:
        """``room_for``, in a step of ``limit_s``, or as long as streams let it be where they take more than half."""
        usual_s = self._limit_s
        self._limit_s = min(usual_s, max(limit_s, STRETCH * self._cost.predict(self._load)))
        try:
            return self.room_for(sequence)
        finally:
            self._limit_s = usual_s

    def count_for(self, sequence: Sequence, max_count: int = sys.maxsize) -> int:
        """Tokens of the sequence that may run in this step, up to ``max_count``; 0 when it has to wait for the next."""
        wanted, left = min(sequence.remaining, max_count), self._tokens_left
        is_cut = self._config.switches.chunked_prefill and self._config.baseline.kv_cache
        if wanted == 1 or (is_cut and self._limit_s == math.inf):
            return min(wanted, left)
        if not is_cut:
            return wanted if wanted <= left or left == self._config.token_budget else 0
        count = self._max_tokens(sequence.num_scheduled, min(wanted, left))
        min_count = 0 if self._has_prompt else min(self._block_size, wanted, left)
        return max(count, min_count)

    def charge(self, sequence: Sequence, count: int) -> None:
        """``count`` tokens of the sequence run in this step."""
        is_stream = sequence.remaining == 1
        self._has_prompt |= not is_stream
        self._tokens_left -= count
        self._load = self._load.plus(count, sequence.num_scheduled)
        if is_stream and not self._has_prompt and self._config.step_time_budget_ms:
            self._limit_s = _limit_s(self._config, self._cost.predict(self._load))

    def _fits(self, count: int, start: int) -> bool:
        load = self._load.plus(count, start)
        return load.tokens <= _known_tokens(self._cost) and self._cost.predict(load) <= self._limit_s

    def _max_tokens(self, start: int, max_count: int) -> int:
        """Largest count up to ``max_count`` that fits the time; the prediction grows with the count."""
        low, high = 0, max_count
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(middle, start):
                low = middle
            else:
                high = middle - 1
        return low


def draft_room(config: SchedulerConfig, cost: StepCostModel, load: StepLoad) -> int:
    """Drafted tokens that a step of streams alone may have: each counts as any other token, in tokens and in time.

    Args:
        config: has both budgets.
        cost: of steps.
        load: of the streams without drafts.
    """
    left = config.token_budget - load.tokens
    if config.step_time_budget_ms:
        left = min(left, _known_tokens(cost) - load.tokens)
        streams_s, token_s = cost.predict(load), cost.coefficients.token_s
        if token_s > 0:
            left = min(left, int((_limit_s(config, streams_s) - streams_s) / token_s))
    return max(0, left)


def _limit_s(config: SchedulerConfig, streams_s: float) -> float:
    """Longest time of a step whose streams alone take so long."""
    return max(config.step_time_budget_ms / 1000, STRETCH * streams_s)


def _known_tokens(cost: StepCostModel) -> int:
    """Tokens of a step up to which the fit is trusted."""
    return max(COLD_TOKENS, 2 * cost.max_step_tokens)
