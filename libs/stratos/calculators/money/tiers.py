"""Small models before large ones: what quality a size keeps, what it saves, and which tasks it may take.

Loss falls with the size as a power: (small / large) ** 0.076, Kaplan's exponent for parameters.  That is a law about
pretraining loss, not about tasks: scores that were measured replace the exponent by the one that fits them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stratos.calculators.bounds import above_zero, shares
from stratos.calculators.formula import Figure, Formula
from stratos.calculators.sheet import Grid, Sheet
from stratos.common.errors import BadRequest

KAPLAN = 0.076
_KEPT = Formula("kept_quality", "(billions / largest_billions) ** exponent")
_PRICE = Formula("price_ratio", "largest_usd / usd")
_LEAST = Formula("least_success_share", "usd / largest_usd")
_BLENDED = Formula("saved_share", "1 - blended_usd_per_million / largest_usd")
_UNPRICED = "No prices were given: a size stands for its price, and what is called usd compares sizes alone."
BY_LAW, BY_EVALUATION = "exponent", "evaluation"
"""Sources of the quality that a size keeps in a task."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A size on offer."""

    billions: float
    usd: float
    """Per million tokens; 0 takes its size as its price."""

    @property
    def price(self) -> float:
        return self.usd or self.billions


@dataclass(frozen=True, slots=True)
class RoutedTask:
    """A kind of work."""

    name: str
    share: float
    """Share of all tokens."""
    floor: float
    """Quality that it needs, as a share of the largest model's."""


def plan_tiers(
    sizes: list[ModelSize],
    tasks: list[RoutedTask],
    measured: Mapping[float, float] | None = None,
    evaluated: Mapping[float, Mapping[str, float]] | None = None,
) -> Sheet:
    """Quality, price and tasks of each size.

    Args:
        sizes: at least two.
        tasks: their shares add up to 1; empty for none.
        measured: scores by billions of parameters, two or more, in place of Kaplan's exponent.
        evaluated: by billions of parameters, the quality that a size keeps beside the largest, by task, instead of what
            the exponent gives.

    Raises:
        BadRequest: a value that makes no sense, by name.
    """
    evaluated = evaluated or {}
    _check(sizes, tasks, evaluated)
    ordered = sorted(sizes, key=lambda size: size.billions)
    largest, exponent = ordered[-1], _exponent(measured or {})
    scale = {"largest_billions": largest.billions, "exponent": exponent.value}
    kept = {size: float(_KEPT.of(billions=size.billions, **scale)) for size in ordered}
    by_task = {task: _kept_by(task, kept, largest, evaluated) for task in tasks}
    chosen = {task: _cheapest(by_task[task], task) for task in tasks}
    routed = {size: sum(task.share for task in tasks if chosen[task] == size) for size in ordered}
    rows = tuple(
        (
            size.billions, kept[size], _PRICE.of(largest_usd=largest.price, usd=size.price),
            _LEAST.of(usd=size.price, largest_usd=largest.price), routed[size],
        )
        for size in ordered
    )  # fmt: skip
    columns = ("billions", "kept_quality", "price_ratio", "least_success_share", "routed_share")
    grids = (Grid("Sizes", columns, rows), _tasks_grid(chosen, by_task, largest, evaluated))
    return Sheet(
        title="Sizes for tasks",
        figures=(exponent, *_saving(largest, routed, tasks)),
        grids=grids if tasks else grids[:1],
        notes=(
            f"kept_quality = {_KEPT.text}; price_ratio = {_PRICE.text}.",
            f"least_success_share = {_LEAST.text}: trying this size first, and the largest where it fails, costs less "
            "than the largest alone when it succeeds more often.",
            *([] if largest.usd else [_UNPRICED]),
        ),
    )


def _tasks_grid(
    chosen: Mapping[RoutedTask, ModelSize],
    by_task: Mapping[RoutedTask, Mapping[ModelSize, float]],
    largest: ModelSize,
    evaluated: Mapping[float, Mapping[str, float]],
) -> Grid:
    """The size of each task, what it keeps and by what, and how often it must succeed to cost less than the largest."""
    rows = tuple(
        (
            task.name, task.share, task.floor, size.billions, by_task[task][size],
            _LEAST.of(usd=size.price, largest_usd=largest.price),
            BY_EVALUATION if task.name in evaluated.get(size.billions, {}) else BY_LAW,
        )
        for task, size in chosen.items()
    )  # fmt: skip
    columns = ("task", "share", "floor", "billions", "kept_quality", "least_success_share", "by")
    return Grid("Tasks", columns, rows)


def _kept_by(
    task: RoutedTask,
    kept: Mapping[ModelSize, float],
    largest: ModelSize,
    evaluated: Mapping[float, Mapping[str, float]],
) -> Mapping[ModelSize, float]:
    """Quality that each size keeps in a task: measured where it was, but for the largest, which all are beside."""
    return {
        size: quality if size == largest else evaluated.get(size.billions, {}).get(task.name, quality)
        for size, quality in kept.items()
    }


def _saving(largest: ModelSize, routed: Mapping[ModelSize, float], tasks: list[RoutedTask]) -> tuple[Figure, ...]:
    if not tasks:
        return ()
    blended = Figure("blended_usd_per_million", sum(share * size.price for size, share in routed.items()), "by share")
    return blended, _BLENDED(blended_usd_per_million=blended.value, largest_usd=largest.price)


def _cheapest(kept: Mapping[ModelSize, float], task: RoutedTask) -> ModelSize:
    """The cheapest size that keeps what the task needs; the largest always does."""
    return min((size for size, quality in kept.items() if quality >= task.floor), key=lambda size: size.price)


def _exponent(measured: Mapping[float, float]) -> Figure:
    """Slope of ln score over ln size, by least squares."""
    if not measured:
        return Figure("exponent", KAPLAN, "Kaplan's, of loss over parameters")
    if len(measured) < 2:
        raise BadRequest("--measured needs two sizes or more", param="--measured")
    for value in (*measured, *measured.values()):
        above_zero(**{"--measured": value})
    x, y = [math.log(size) for size in measured], [math.log(score) for score in measured.values()]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    return Figure("exponent", slope, f"fitted to {len(measured)} measured scores")


def _check(sizes: list[ModelSize], tasks: list[RoutedTask], evaluated: Mapping[float, Mapping[str, float]]) -> None:
    if len({size.billions for size in sizes}) < 2:
        raise BadRequest("--size must be given for two sizes or more, as 13 or 13=0.9", param="--size")
    for size in sizes:
        above_zero(**{"--size": size.billions, "usd of --size": size.price})
    if len({size.usd > 0 for size in sizes}) > 1:
        raise BadRequest("--size must have a price for each size or for none", param="--size")
    smaller = {size.billions for size in sizes} - {max(size.billions for size in sizes)}
    if unknown := evaluated.keys() - smaller:
        text = f"--evaluation {min(unknown):g}: there is no such --size below the largest"
        raise BadRequest(text, param="--evaluation")
    for task in tasks:
        shares(**{f"share of --task {task.name}": task.share, f"floor of --task {task.name}": task.floor})
    if len({task.name for task in tasks}) < len(tasks):
        raise BadRequest("--task must name each task once", param="--task")
    if tasks and not math.isclose(sum(task.share for task in tasks), 1, abs_tol=1e-6):
        raise BadRequest("the shares of --task must add up to 1", param="--task")
