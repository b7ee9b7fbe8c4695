"""``--find capacity`` and ``--find batch``: runs at one load after the other, until the limit is known."""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from stratos.cli.load.harness import LoadMeasurement
from stratos.cli.load.search.bracket import Bracket, SearchSpace, find_limit
from stratos.cli.load.search.criteria import BelowKnee, KeepsPromise
from stratos.common.errors import BadRequest

SEARCH_RUN_S = 20.0
"""Duration of a run of a search for the capacity that has no bound of its own."""


class SearchMode(enum.StrEnum):
    """Kind of a limit."""

    CAPACITY = "capacity"
    """Requests per second of a Poisson process: that keep a promise, or up to the knee where none is made."""
    BATCH = "batch"
    """Streams at once that keep a promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAsk:
    """One search."""

    mode: SearchMode
    least: float = 1.0
    most: float = 1024.0
    share: float = 0.99
    """Share of the requests that must keep the promise."""
    has_promise: bool

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.mode is SearchMode.BATCH and not self.has_promise:
            raise BadRequest("--find batch looks for a promise to be kept: give --slo", param="--slo")
        if not 0 < self.least <= self.most < math.inf or not 0 < self.share <= 1:
            text = "a search needs 0 < --least <= --most, which has an end, and 0 < --kept-share <= 1"
            raise BadRequest(text, param="--least")
        if self.mode is SearchMode.BATCH and (self.least != int(self.least) or self.most != int(self.most)):
            raise BadRequest("--find batch needs whole numbers as --least and --most", param="--least")

    def arrivals(self, load: float) -> str:
        """``--arrivals`` of a run."""
        return f"closed:{load:.0f}" if self.mode is SearchMode.BATCH else f"poisson:{load:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Limit that a search found, and every run of it."""

    ask: SearchAsk
    bracket: Bracket
    runs: tuple[LoadMeasurement, ...]
    borne: tuple[bool, ...]
    """Verdict on each run."""
    is_client_limit: bool
    """The last load that was not borne was one that the client could not send."""

    def as_json(self) -> dict[str, Any]:
        """The document of a search."""
        rows = zip(self.runs, self.borne, strict=True)
        return {
            "find": self.ask.mode.value,
            "borne": self.bracket.borne,
            "not_borne": self.bracket.not_borne,
            "is_client_limit": self.is_client_limit,
            "runs": [run.as_json() | {"is_borne": borne} for run, borne in rows],
        }

    def sentence(self) -> str:
        """The result in words."""
        unit = "streams" if self.ask.mode is SearchMode.BATCH else "requests/s"
        what = "keep the promise" if self.ask.has_promise else "are below the knee"
        why = ": the client could not send them" if self.is_client_limit else ""
        if self.bracket.borne is None:
            return f"not even {self.ask.least:g} {unit} {what}{why}"
        found = f"{self.bracket.borne:g} {unit} {what}"
        if self.bracket.not_borne is None:
            return f"{found}; no more were tried"
        return f"{found}, {self.bracket.not_borne:g} do not{why}"


async def search(ask: SearchAsk, measure: Callable[[str], Awaitable[LoadMeasurement]]) -> SearchResult:
    """Run loads until the limit is known.

    Args:
        ask: what is looked for.
        measure: makes one run with these ``--arrivals``.

    Raises:
        BadRequest: a run sent no request, so it says nothing.
    """
    criterion = KeepsPromise(ask.share) if ask.has_promise else BelowKnee()
    runs: list[LoadMeasurement] = []
    borne: list[bool] = []
    invalid: set[float] = set()

    async def is_borne(load: float) -> bool:
        run = await measure(ask.arrivals(load))
        if not run.result.requests:
            raise BadRequest(f"{run.arrivals} sent no request: raise --duration or --least", param="--duration")
        # What the client could not send says nothing about the server, so nothing above it can be found either.
        is_valid = run.report.client.is_valid
        if not is_valid:
            invalid.add(load)
        runs.append(run)
        borne.append(criterion.is_met(run.report) and is_valid)
        return borne[-1]

    space = SearchSpace(least=ask.least, most=ask.most, is_whole=ask.mode is SearchMode.BATCH)
    bracket = await find_limit(space, is_borne)
    return SearchResult(
        ask=ask, bracket=bracket, runs=tuple(runs), borne=tuple(borne), is_client_limit=bracket.not_borne in invalid
    )
