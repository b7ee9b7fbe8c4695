"""A trace of agents: sessions whose prompt grows by a tool's result at each turn, so nearly all of it is cached."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from random import Random

from stratos.cli.load.traces.mooncake import BLOCK_TOKENS, TraceRow

SESSIONS_PER_S = 0.05
MEAN_TURNS = 30
SYSTEM_BLOCKS = 8
"""Blocks of the system prompt that all sessions share."""
NEW_MEDIAN, NEW_SIGMA = 800, 0.7
"""Tokens that a turn adds; with the lengths above 94 % of a prompt was there before."""
OUTPUT_SHARE = 0.013
"""Output over prompt."""
PAUSE_MEDIAN_S, PAUSE_SIGMA = 5.2, math.log(81 / 5.2) / 2.326
"""Median and p99 (81 s) of the pause between turns."""


def agentic_rows(num_requests: int, seed: int) -> Iterator[TraceRow]:
    """Rows in the order of their times; sessions overlap.

    Args:
        num_requests: rows.
        seed: the same one gives the same rows.
    """
    begins = Random(f"{seed}/begins")
    waiting: list[tuple[float, int, TraceRow, Iterator[TraceRow]]] = []
    begin_s, num_sessions, ids = 0.0, 0, itertools.count(SYSTEM_BLOCKS)

    def wait(number: int, rows: Iterator[TraceRow]) -> None:
        if (row := next(rows, None)) is not None:
            heapq.heappush(waiting, (row.timestamp_ms, number, row, rows))

    for _ in range(num_requests):
        while not waiting or waiting[0][0] >= 1e3 * begin_s:
            wait(num_sessions, _session(Random(f"{seed}/session/{num_sessions}"), begin_s, ids))
            num_sessions, begin_s = num_sessions + 1, begin_s + begins.expovariate(SESSIONS_PER_S)
        _, number, row, rows = heapq.heappop(waiting)
        yield row
        wait(number, rows)


def _session(rng: Random, at_s: float, ids: Iterator[int]) -> Iterator[TraceRow]:
    """Turns of one session; what is full of a prompt's blocks is the beginning of the next prompt."""
    blocks, num_tokens = list(range(SYSTEM_BLOCKS)), SYSTEM_BLOCKS * BLOCK_TOKENS
    while True:
        num_tokens += max(1, round(rng.lognormvariate(math.log(NEW_MEDIAN), NEW_SIGMA)))
        blocks += (next(ids) for _ in range(num_tokens // BLOCK_TOKENS - len(blocks)))
        tail = (next(ids),) if num_tokens % BLOCK_TOKENS else ()
        num_output = max(1, round(OUTPUT_SHARE * num_tokens))
        yield TraceRow(
            timestamp_ms=round(1e3 * at_s, 3),
            num_prompt_tokens=num_tokens,
            num_output_tokens=num_output,
            hash_ids=(*blocks, *tail),
        )
        if rng.random() < 1 / MEAN_TURNS:
            return
        num_tokens += num_output
        at_s += rng.lognormvariate(math.log(PAUSE_MEDIAN_S), PAUSE_SIGMA)
