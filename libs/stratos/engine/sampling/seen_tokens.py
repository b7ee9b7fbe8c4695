"""Tokens that a sequence has had, for the penalties: kept from step to step, so that a step adds one token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stratos.core.requests.records import RequestKey
from stratos.engine.contract.plan import SampleSpec

MIN_KEPT = 64
"""Sequences whose tokens are kept, at least; more where a batch has more."""


class SeenTokens:
    """Tokens of one prompt and its output, each once, with how often the output has it."""

    def __init__(self, prompt_ids: tuple[int, ...]) -> None:
        self._prompt_ids, self._output_ids = prompt_ids, tuple[int, ...]()
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt_ids))}
        self.ids: npt.NDArray[np.int64] = np.fromiter(self._places, dtype=np.int64, count=len(self._places))
        """The first ``len(self)`` count."""
        self.counts: npt.NDArray[np.float32] = np.zeros(len(self._places), dtype=np.float32)

    def __len__(self) -> int:
        return len(self._places)

    def continues(self, spec: SampleSpec) -> bool:
        """Whether ``spec`` is of this sequence, at this place or a later one."""
        is_prompt = self._prompt_ids is spec.prompt_ids or self._prompt_ids == spec.prompt_ids
        return is_prompt and spec.output_ids[: len(self._output_ids)] == self._output_ids

    def follow(self, output_ids: tuple[int, ...]) -> None:
        """Count the output's new tokens."""
        self._count(output_ids[len(self._output_ids) :])
        self._output_ids = output_ids

    def with_drafts(self, drafts: tuple[int, ...]) -> SeenTokens:
        """Copy with drafted tokens counted as well; the tokens of this one stay as they are."""
        copy = object.__new__(SeenTokens)
        copy._prompt_ids, copy._output_ids = self._prompt_ids, self._output_ids
        copy._places, copy.ids, copy.counts = self._places.copy(), self.ids.copy(), self.counts.copy()
        copy._count(drafts)
        return copy

    def _count(self, token_ids: Iterable[int]) -> None:
        for token in token_ids:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self.ids):
                self.ids = np.concatenate((self.ids, np.empty(place + MIN_KEPT, dtype=np.int64)))
                self.counts = np.concatenate((self.counts, np.zeros(place + MIN_KEPT, dtype=np.float32)))
            self.ids[place] = token
            self.counts[place] += 1


class SeenTable:
    """``SeenTokens`` of the sequences that were sampled last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[RequestKey, int], SeenTokens] = OrderedDict()

    def of(self, spec: SampleSpec, num_rows: int) -> SeenTokens:
        """Tokens of a sequence so far.

        Args:
            spec: names the sequence.
            num_rows: of the batch; the sequences of two batches are kept.
        """
        if spec.num_drafted:
            begin = len(spec.output_ids) - spec.num_drafted
            first = replace(spec, output_ids=spec.output_ids[:begin], num_drafted=0)
            return self.of(first, num_rows).with_drafts(spec.output_ids[begin:])
        name = (spec.key, spec.choice)
        seen = self._kept.get(name)
        if seen is None or not seen.continues(spec):
            seen = self._kept[name] = SeenTokens(spec.prompt_ids)
        seen.follow(spec.output_ids)
        self._kept.move_to_end(name)
        while len(self._kept) > max(MIN_KEPT, 2 * num_rows):
            self._kept.popitem(last=False)
        return seen
