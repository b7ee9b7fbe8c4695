"""Cost of a step, fitted while it runs: ``seconds = a + b * tokens + c * kv_tokens``, no coefficient below zero.

Weighted least squares with forgetting, in the information form: the sums over ``w x x'`` and ``w x t`` decay by
``FORGETTING`` per step, so the fit follows a machine that becomes slower.  Errors count relative to the duration of
the step, or a few long prefills would outweigh every decode; relative to the predicted one, since weights by the
measured one favour steps that happened to be fast, and promise too little on a noisy machine.  Four additions make it
usable on real steps:

- A step far off the prediction moves the fit as if it were a few typical errors off (Huber's clipping); what is
  typical adapts, so one descheduled step is ignored and a lasting change is not.
- When ``SHIFT_STEPS`` steps in a row are all slower than predicted by ``SHIFT_RATIO``, or all faster, the machine has
  changed (another number of threads, a neighbour): everything known is scaled by their median ratio at once.
- Directions that recent steps say nothing about (a batch that only decodes) stay where they were: a small ridge
  pulls to the last solution instead of to zero.
- Non-negative by trying every set of active coefficients: there are seven. The one of the step before comes first, and
  is taken where no other can be better: the gradient of what it leaves at 0 is not negative.

``StepBudget`` asks it; it knows neither the clock nor the scheduler.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stratos.engine.contract.results import CostErrors

QUERY_TILE = 16
"""Attention walks the context once per tile of so many queries; a decode row is a tile of one."""
TOKENS_UNIT, KV_UNIT = 64.0, 4096.0
"""Features are scaled by these, so that the sums are well conditioned."""
FORGETTING = 0.98
CLIP_RATIO = 4.0
"""Typical errors beyond which a step is an outlier."""
SHIFT_STEPS = 8
SHIFT_RATIO = 1.3
ERROR_RATE = 0.1
MIN_ERROR = 0.02
RIDGE = 1e-3
NUM_ERRORS = 256
"""Recent errors that are remembered."""
ERRORS_FROM = 32
"""Steps before which errors say more about the start than about the model."""
_SUBSETS = ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Work of one step."""

    tokens: int = 0
    """Tokens in the forward pass."""
    kv_tokens: int = 0
    """KV tokens that attention reads, counted once per tile of queries."""

    def plus(self, count: int, start: int) -> StepLoad:
        """Load with another row, of ``count`` tokens after ``start`` computed ones."""
        tiles = -(-count // QUERY_TILE)
        return StepLoad(self.tokens + count, self.kv_tokens + tiles * (start + count))


def load_of(rows: Iterable[tuple[int, int]]) -> StepLoad:
    """Load of rows, each of so many tokens after so many computed ones."""
    tokens = kv_tokens = 0
    for count, start in rows:
        tokens += count
        kv_tokens += -(-count // QUERY_TILE) * (start + count)
    return StepLoad(tokens, kv_tokens)


class CostCoefficients(NamedTuple):
    """The fit, in seconds."""

    step_s: float
    token_s: float
    kv_token_s: float


class StepCostModel:
    """Feed ``observe`` with every step; ``predict`` is 0 before the first."""

    def __init__(self) -> None:
        self._information = [[0.0] * 3 for _ in range(3)]
        self._moments = [0.0] * 3
        self._solution = [0.0] * 3
        self._typical_error = 0.25
        self._subset: tuple[int, ...] = ()
        """Coefficients of the last solution that may be above 0; none: every set is tried."""
        self._errors: deque[float] = deque(maxlen=NUM_ERRORS)
        self._ratios: deque[float] = deque(maxlen=SHIFT_STEPS)
        self.num_steps = 0
        self.max_step_tokens = 0
        """Largest step seen: beyond it the fit only extrapolates."""

    @property
    def coefficients(self) -> CostCoefficients:
        step, token, kv = self._solution
        return CostCoefficients(step, token / TOKENS_UNIT, kv / KV_UNIT)

    @property
    def errors(self) -> CostErrors | None:
        """How far off it was recently; ``None`` before it has seen enough."""
        if self.num_steps < ERRORS_FROM:
            return None
        ordered = sorted(self._errors)  # here and not in each step
        return CostErrors(*(ordered[math.ceil(fraction * len(ordered)) - 1] for fraction in (0.5, 0.9)))

    def forget_subset(self) -> None:
        """Let the next step try every set of coefficients."""
        self._subset = ()

    def predict(self, load: StepLoad) -> float:
        step, token, kv = self._solution  # written out: a step asks some times
        return step + token * (load.tokens / TOKENS_UNIT) + kv * (load.kv_tokens / KV_UNIT)

    def observe(self, load: StepLoad, seconds: float) -> None:
        """A step with this load took so long; what is no duration is ignored."""
        if load.tokens <= 0 or not 0 < seconds < math.inf:
            return
        predicted = self.predict(load)
        if predicted > 0:
            self._errors.append(abs(predicted / seconds - 1))
            self._shift(seconds / predicted)
            predicted = self.predict(load)
        target = self._clipped(predicted, seconds)
        self._note(load.tokens / TOKENS_UNIT, load.kv_tokens / KV_UNIT, target, 1.0 / (predicted or target) ** 2)
        self._solution = self._solve()
        self.num_steps += 1
        self.max_step_tokens = max(self.max_step_tokens, load.tokens)

    def _note(self, tokens: float, kv: float, target: float, weight: float) -> None:
        """Add a step with the features 1, ``tokens`` and ``kv`` to the sums."""
        (a, b, c), (_, d, e), (_, _, f) = self._information
        x, y, z = self._moments
        by_tokens, by_kv = weight * tokens, weight * kv
        a, b, c = a * FORGETTING + weight, b * FORGETTING + by_tokens, c * FORGETTING + by_kv
        d, e, f = d * FORGETTING + by_tokens * tokens, e * FORGETTING + by_tokens * kv, f * FORGETTING + by_kv * kv
        self._information = [[a, b, c], [b, d, e], [c, e, f]]
        self._moments = [
            x * FORGETTING + weight * target,
            y * FORGETTING + by_tokens * target,
            z * FORGETTING + by_kv * target,
        ]

    def _shift(self, ratio: float) -> None:
        """Scale everything when recent steps agree that all of it takes longer, or less."""
        self._ratios.append(ratio)
        is_slower = min(self._ratios) > SHIFT_RATIO
        is_faster = max(self._ratios) < 1 / SHIFT_RATIO
        if len(self._ratios) < SHIFT_STEPS or not (is_slower or is_faster):
            return
        factor = statistics.median(self._ratios)
        self._solution = [factor * value for value in self._solution]
        self._moments = [value / factor for value in self._moments]  # a sum of x * t / predicted^2
        self._information = [[value / factor**2 for value in row] for row in self._information]
        self._ratios.clear()

    def _clipped(self, predicted: float, seconds: float) -> float:
        if predicted <= 0:
            return seconds
        error = seconds / predicted - 1.0
        limit = CLIP_RATIO * self._typical_error
        self._typical_error += ERROR_RATE * (min(abs(error), 2 * limit) - self._typical_error)
        self._typical_error = max(self._typical_error, MIN_ERROR)
        return predicted * max(0.1, 1.0 + min(max(error, -limit), limit))

    def _solve(self) -> list[float]:
        """The non-negative solution that is least wrong, pulled a little to the last one."""
        matrix = [row.copy() for row in self._information]
        right = self._moments.copy()
        for i in range(3):
            ridge = RIDGE * self._information[i][i] + 1e-30
            matrix[i][i] += ridge
            right[i] += ridge * self._solution[i]
        found = _solve_on(matrix, right, self._subset) if self._subset else None
        if found is not None and min(found) >= 0 and _is_least(matrix, right, self._subset, found):
            return found
        best, best_value = self._solution, math.inf
        for subset in _SUBSETS:
            found = _solve_on(matrix, right, subset)
            if found is None or min(found) < 0:
                continue
            value = 0.0
            for i in subset:
                value += found[i] * (sum([matrix[i][j] * found[j] for j in subset]) - 2 * right[i])
            if value < best_value:
                best, best_value, self._subset = found, value, subset
            if len(subset) == len(right):
                break  # the least wrong of all, and none of it negative
        return best


def _is_least(matrix: list[list[float]], right: list[float], subset: Sequence[int], found: list[float]) -> bool:
    """A solution that is not negative could not become less wrong by any coefficient that it leaves at 0."""
    if len(subset) == 3:
        return True
    x, y, z = found
    return all(row[0] * x + row[1] * y + row[2] * z >= right[i] for i, row in enumerate(matrix) if i not in subset)


def _solve_on(matrix: list[list[float]], right: list[float], subset: Sequence[int]) -> list[float] | None:
    """Gaussian elimination on some of the unknowns, the others are 0; ``None`` when it is singular.

    Written out for each size: it runs some times in every step.  The matrix is symmetric and positive definite, so no
    exchange of rows is needed.
    """
    if len(subset) == 3:
        return _solve_three(matrix, right)
    found, i, j = [0.0] * 3, subset[0], subset[-1]
    pivot = matrix[i][i]
    if pivot <= 0:
        return None
    known = 0.0
    if i != j:
        factor = matrix[j][i] / pivot
        rest = matrix[j][j] - factor * matrix[i][j]
        if rest <= 0:
            return None
        found[j] = (right[j] - factor * right[i]) / rest
        known = matrix[i][j] * found[j]
    found[i] = (right[i] - known) / pivot
    return found


def _solve_three(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    (a, b, c), (d, e, f), (g, h, i) = matrix
    x, y, z = right
    if a <= 0:
        return None
    factor = d / a
    e, f, y = e - factor * b, f - factor * c, y - factor * x
    factor = g / a
    h, i, z = h - factor * b, i - factor * c, z - factor * x
    if e <= 0:
        return None
    factor = h / e
    i, z = i - factor * f, z - factor * y
    if i <= 0:
        return None
    third = z / i
    second = (y - f * third) / e
    return [(x - (b * second + c * third)) / a, second, third]
