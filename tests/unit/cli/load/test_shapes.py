"""Generated traces have the shapes that were published: percentiles, rates, dispersion, shared prefixes, days."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from stratos.cli.load.traces.arrival_shapes import DAY_LOAD, WEEK_LOAD
from stratos.cli.load.traces.mooncake import TraceRow, read_rows, write_rows
from stratos.cli.load.traces.shapes import AGENTIC, SHAPES, shaped_rows
from stratos.common.errors import NotFound
from stratos.core.rules.quantile import percentile

NAMES = [*SHAPES, AGENTIC]


def rows_of(name: str, count: int = 6000, seed: int = 0) -> list[TraceRow]:
    return list(shaped_rows(name, count, seed))


def percentiles(values: Sequence[float]) -> list[float]:
    return [percentile(sorted(values), percent) for percent in (10, 50, 90, 99)]


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_file_byte_for_byte_and_it_can_be_read(name: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        assert write_rows(path, shaped_rows(name, 300, seed)) == 300
    first, again, other = (path.read_bytes() for path in paths)
    assert first == again != other
    assert len(list(read_rows(paths[0]))) == 300
    assert set(json.loads(first.splitlines()[0])) == {"timestamp", "input_length", "output_length", "hash_ids"}


@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [
        ("azure-conversation", (207, 1020, 2735, 4142), (54, 129, 424, 601)),
        ("mooncake-conversation", (964, 6909, 27_367, 85_401), (24, 350, 597, 1120)),
    ],
)
def test_lengths_have_the_published_percentiles(name: str, prompt: tuple[int, ...], output: tuple[int, ...]) -> None:
    rows = rows_of(name, 20_000)
    assert percentiles([row.num_prompt_tokens for row in rows]) == pytest.approx(prompt, rel=0.05)
    assert percentiles([row.num_output_tokens for row in rows]) == pytest.approx(output, rel=0.05)


def test_code_has_long_prompts_and_short_answers() -> None:
    rows = rows_of("azure-code")
    assert statistics.median(row.num_prompt_tokens for row in rows) == pytest.approx(1500, rel=0.05)
    assert max(row.num_prompt_tokens for row in rows) == 7437
    assert statistics.median(row.num_output_tokens for row in rows) == pytest.approx(13, rel=0.1)
    gaps = [(b.timestamp_ms - a.timestamp_ms) / 1e3 for a, b in itertools.pairwise(rows)]
    pauses = [gap for gap in gaps if gap > 20]
    assert min(pauses) >= 30
    assert max(pauses) <= 140.01
    assert 10 < len(pauses) < 60


@pytest.mark.parametrize(
    ("name", "rate", "dispersion", "window_s"),
    [("azure-conversation", 5.53, 4.0, 10.0), ("mooncake-conversation", 3.40, 2.85, 60.0)],
)
def test_arrivals_are_burstier_than_chance(name: str, rate: float, dispersion: float, window_s: float) -> None:
    rows = rows_of(name, 40_000)
    num_windows = int(rows[-1].timestamp_ms / 1e3 / window_s)
    counts = Counter(int(row.timestamp_ms / 1e3 / window_s) for row in rows)
    found = [counts[window] for window in range(num_windows)]
    assert statistics.fmean(found) / window_s == pytest.approx(rate, rel=0.05)
    assert statistics.pvariance(found) / statistics.fmean(found) == pytest.approx(dispersion, rel=0.25)


def test_mooncake_shares_prefixes_as_often_as_published_and_ticks_in_three_seconds() -> None:
    rows, seen, hits = rows_of("mooncake-conversation"), set[int | str](), 0
    for row in rows:
        assert len(row.hash_ids) == -(-row.num_prompt_tokens // 512)
        hits += sum(1 for _ in itertools.takewhile(seen.__contains__, row.hash_ids))
        seen.update(row.hash_ids)
    assert hits / sum(len(row.hash_ids) for row in rows) == pytest.approx(0.366, rel=0.05)
    assert {row.timestamp_ms % 3000 for row in rows} == {0}


@pytest.mark.parametrize(("name", "load"), [("burstgpt-day", DAY_LOAD), ("burstgpt-week", WEEK_LOAD)])
def test_days_and_weeks_have_their_hours(name: str, load: Sequence[float]) -> None:
    """The mean over seeds follows the table: single runs are bursty."""
    counts: dict[int, int] = defaultdict(int)
    for seed in range(4):
        for row in rows_of(name, 10_000, seed):
            counts[int(row.timestamp_ms / 3.6e6)] += 1
    num_hours = len(load)
    mean = sum(counts[hour] for hour in range(num_hours)) / num_hours
    for block in range(0, num_hours - 6, 6):  # a file of so many rows ends a little before or after
        expected = sum(load[block : block + 6]) / sum(load) * num_hours / 6
        assert sum(counts[hour] for hour in range(block, block + 6)) / 6 / mean == pytest.approx(expected, abs=0.15)


def test_agents_find_nearly_all_of_a_prompt_in_the_cache_and_pause_as_published() -> None:
    rows, seen, hits, total = rows_of(AGENTIC, 8000), set[int | str](), 0, 0
    last: dict[int | str, float] = {}
    pauses = []
    for row in rows:
        hits += 512 * sum(1 for _ in itertools.takewhile(seen.__contains__, row.hash_ids))
        total += row.num_prompt_tokens
        seen.update(row.hash_ids)
        if len(row.hash_ids) > 9:  # the first block of its own names a session
            if row.hash_ids[8] in last:
                pauses.append((row.timestamp_ms - last[row.hash_ids[8]]) / 1e3)
            last[row.hash_ids[8]] = row.timestamp_ms
    assert hits / total == pytest.approx(0.94, abs=0.03)
    assert statistics.median(pauses) == pytest.approx(5.2, rel=0.1)
    assert percentile(sorted(pauses), 99) == pytest.approx(81, rel=0.2)
    assert sum(row.num_output_tokens for row in rows) / total == pytest.approx(0.013, rel=0.05)


def test_an_unknown_shape_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(NotFound, match=r"azure-conversation, .* agentic"):
        shaped_rows("azure", 1, 0)


def test_percentile_lengths_stay_within_their_ends() -> None:
    prompt = SHAPES["azure-conversation"].prompt
    found = [prompt.draw(Random(seed)) for seed in range(2000)]
    assert min(found) >= 3
    assert max(found) <= 14_050
