"""Which of the scored workers is taken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from types import MappingProxyType

from stratos.routing.worker_view import WorkerView

TIE = 1e-9
"""Scores that differ by less are equal; summation order must not decide."""


class Picker(ABC):
    """One per pool, for it may remember what it picked."""

    @abstractmethod
    def pick(self, views: Sequence[WorkerView], scores: Sequence[float], rng: Random) -> int:
        """Index of the worker to take; there is at least one."""


class BestPicker(Picker):
    """The best score, by chance among equals."""

    def pick(self, views: Sequence[WorkerView], scores: Sequence[float], rng: Random) -> int:
        return rng.choice(_best(scores))


class RoundRobinPicker(Picker):
    """In turn, by name, among those with the best score: without scorers, all."""

    def __init__(self) -> None:
        self._last = ""

    def pick(self, views: Sequence[WorkerView], scores: Sequence[float], rng: Random) -> int:
        best = sorted(_best(scores), key=lambda index: views[index].ref.worker_id)
        chosen = next((index for index in best if views[index].ref.worker_id > self._last), best[0])
        self._last = views[chosen].ref.worker_id
        return chosen


class TwoChoicesPicker(Picker):
    """The better one of two by chance: several routers with equal views do not all pick the same worker."""

    def pick(self, views: Sequence[WorkerView], scores: Sequence[float], rng: Random) -> int:
        return max(rng.sample(range(len(views)), min(2, len(views))), key=lambda index: scores[index])


def _best(scores: Sequence[float]) -> list[int]:
    least = max(scores) - TIE
    return [index for index, score in enumerate(scores) if score >= least]


PICKERS: MappingProxyType[str, type[Picker]] = MappingProxyType(
    {"best": BestPicker, "round_robin": RoundRobinPicker, "two_choices": TwoChoicesPicker}
)
