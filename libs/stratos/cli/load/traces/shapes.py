"""Generators of traces with the shapes of published ones: lengths, arrivals and shared prefixes; a seed gives a file.

The numbers are computed from the public files where the table below says so.  Where only a plot or a text was
published, they are chosen to look like it, and the text says "chosen".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from stratos.cli.load.traces.agentic import agentic_rows
from stratos.cli.load.traces.arrival_shapes import (
    DAY_LOAD,
    HOUR_S,
    WEEK_LOAD,
    ClusteredArrivals,
    ModulatedArrivals,
    PeriodicArrivals,
)
from stratos.cli.load.traces.mooncake import TraceRow
from stratos.cli.load.traces.percentile_lengths import of_percentiles
from stratos.cli.load.traces.sharing import PrefixSharing
from stratos.cli.load.workload.arrivals import Arrivals
from stratos.cli.load.workload.lengths import Lengths, LogNormalLength
from stratos.common.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceShape:
    """Lengths, arrivals and sharing of a published trace."""

    source: str
    prompt: Lengths
    output: Lengths
    arrivals: Callable[[int], Arrivals]
    """From the number of requests: a day and a week are as long with few as with many."""
    hit_ratio: float = 0.0
    """Share of the prompt blocks that an earlier request had."""
    tick_ms: float = 1.0
    """Times of the file are multiples of it."""


def _day(num_requests: int) -> Arrivals:
    return PeriodicArrivals(num_requests / (24 * HOUR_S), 2.0, DAY_LOAD)


def _week(num_requests: int) -> Arrivals:
    return PeriodicArrivals(num_requests / (7 * 24 * HOUR_S), 2.0, WEEK_LOAD)


_BURSTGPT = (
    "BurstGPT (5.3 M requests in 121 days): gamma gaps, days and weeks, prompts up to 2 K; its numbers are chosen"
)
_BURSTGPT_PROMPT, _BURSTGPT_OUTPUT = LogNormalLength(350, 1.1, 2048), LogNormalLength(220, 0.6, 1024)
SHAPES: Mapping[str, TraceShape] = {
    "azure-conversation": TraceShape(
        source="Azure 2023 conversation, computed from 19,366 requests: 5.53/s, dispersion 4.0 over 10 s",
        prompt=of_percentiles(3, 207, 1020, 2735, 4142, 14_050),
        output=of_percentiles(1, 54, 129, 424, 601, 1000),
        arrivals=lambda _: ModulatedArrivals(5.53, 4.0, 10.0),
    ),
    "azure-code": TraceShape(
        source="Azure 2023 code: median prompt 1.5 K, at most 7.4 K, median output 13, pauses of 30-140 s; rest chosen",
        prompt=LogNormalLength(1500, 0.9, 7437),
        output=LogNormalLength(13, 1.0, 1899),
        arrivals=lambda _: ClusteredArrivals(8.0, 220.0, 30.0, 140.0),
    ),
    "burstgpt-day": TraceShape(source=_BURSTGPT, prompt=_BURSTGPT_PROMPT, output=_BURSTGPT_OUTPUT, arrivals=_day),
    "burstgpt-week": TraceShape(source=_BURSTGPT, prompt=_BURSTGPT_PROMPT, output=_BURSTGPT_OUTPUT, arrivals=_week),
    "mooncake-conversation": TraceShape(
        source="Mooncake conversation, computed from 12,031 requests: 3.40/s, dispersion 2.85 over 60 s, ticks of 3 s",
        prompt=of_percentiles(100, 964, 6909, 27_367, 85_401, 126_000),
        output=of_percentiles(1, 24, 350, 597, 1120, 2000),
        arrivals=lambda _: ModulatedArrivals(3.40, 2.85, 60.0),
        hit_ratio=0.366,
        tick_ms=3000.0,
    ),
}
AGENTIC = "agentic"
SOURCES: Mapping[str, str] = {name: shape.source for name, shape in SHAPES.items()} | {
    AGENTIC: "Coding agents, as published: 94 % cached, 5.2 s between turns (p99 81 s), output 1.3 %; sizes chosen"
}
"""Every shape, and where its numbers come from."""


def shaped_rows(name: str, num_requests: int, seed: int) -> Iterator[TraceRow]:
    """Rows of a trace.

    Args:
        name: of ``SHAPES``, or ``AGENTIC``.
        num_requests: rows.
        seed: the same one gives the same rows.

    Raises:
        NotFound: there is no such shape; names all.
    """
    if name == AGENTIC:
        return agentic_rows(num_requests, seed)
    if name not in SHAPES:
        raise NotFound(f"no shape {name!r}; there are {', '.join([*SHAPES, AGENTIC])}")
    return itertools.islice(_rows(SHAPES[name], num_requests, seed), num_requests)


def _rows(shape: TraceShape, num_requests: int, seed: int) -> Iterator[TraceRow]:
    prompts, outputs, prefixes, times = (Random(f"{seed}/{part}") for part in ("in", "out", "prefixes", "times"))
    sharing = PrefixSharing(shape.hit_ratio, prefixes)
    for at_s in shape.arrivals(num_requests).times(times):
        num_prompt = shape.prompt.draw(prompts)
        yield TraceRow(
            timestamp_ms=1e3 * at_s // shape.tick_ms * shape.tick_ms,
            num_prompt_tokens=num_prompt,
            num_output_tokens=shape.output.draw(outputs),
            hash_ids=sharing.ids(num_prompt) if shape.hit_ratio else (),
        )
