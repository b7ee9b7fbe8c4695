"""Loads under a virtual clock: times that can be computed by hand, and the laws that rows rely on."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from stratos.engine.settings import SchedulerConfig
from stratos.engine.switches import Baselines
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.driving import few_notes, percent_point
from stratos.reproduce.load.kv_pool import measure_pool
from stratos.reproduce.load.lengths import CONTEXT_TOKENS, log_normal_lengths, mean_of_log_normal
from stratos.reproduce.load.loaded import load_model, token_bytes_of
from stratos.reproduce.load.virtual import VirtualEngine, run_virtual
from stratos.reproduce.record.conditions import RowConditions, RowForm
from stratos.reproduce.rows.batch_sweep import knee
from stratos.reproduce.rows.continuous_batching import SEVEN_AND_ONE
from stratos.reproduce.rows.fleets.prefill_decode import (
    ARMS,
    LEAST_RATE,
    MOST_RATE,
    ServedRequest,
    most_rate,
    own_gain,
)
from stratos.reproduce.rows.sampling_quality import parses
from tests.support.paths import ROOT


def ask(num_output_tokens: int, arrival_s: float = 0.0) -> LoadAsk:
    return LoadAsk(num_prompt_tokens=16, num_output_tokens=num_output_tokens, arrival_s=arrival_s)


@pytest.mark.parametrize(
    ("batching", "num_batches", "seconds"),
    [
        ("static", 1, 5.0),
        ("continuous", 1, 5.0),  # nothing waits that could take a freed row
        ("static", 2, 10.0),
        ("continuous", 2, 6.0),  # the second long output begins in a row that 50 tokens and 50 more have left
    ],
)
def test_steps_of_10_ms_add_up(batching: str, num_batches: int, seconds: float) -> None:
    scheduler = SchedulerConfig(max_num_seqs=8, baseline=Baselines(batching=batching))  # type: ignore[arg-type]
    run = run_virtual(VirtualEngine(scheduler=scheduler), SEVEN_AND_ONE.asks(num_batches))
    assert run.num_output_tokens == 850 * num_batches
    assert run.duration_s == pytest.approx(seconds)


def test_latency_counts_from_the_arrival_also_when_the_engine_is_busy() -> None:
    config = VirtualEngine(scheduler=SchedulerConfig(max_num_seqs=1))
    run = run_virtual(config, [ask(10), ask(5, arrival_s=0.03), ask(1, arrival_s=2.0)])
    assert [outcome.ttft_s for outcome in run.outcomes] == pytest.approx([0.01, 0.08, 0.01])
    assert run.duration_s == pytest.approx(2.01)
    assert run.outcomes[0].gaps_s == pytest.approx([0.01] * 9)


def test_a_pool_of_slots_holds_as_many_requests_as_slots() -> None:
    scheduler = SchedulerConfig(kv_watermark=1.0, baseline=Baselines(kv_allocation="contiguous"))
    config = VirtualEngine(num_blocks=4 * 8, max_model_len=128, scheduler=scheduler)
    use = measure_pool(config, [ask(64)] * 12)
    assert (use.most_running, use.preemptions, use.recomputed) == (4, 0, 0.0)
    assert use.live + use.waste == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("sigma", [0.6, 1.0])
def test_the_mean_of_cut_lengths_is_what_many_of_them_have(sigma: float) -> None:
    lengths = log_normal_lengths(20_000, sigma, Random(1), most=CONTEXT_TOKENS)
    assert statistics.fmean(lengths) == pytest.approx(mean_of_log_normal(sigma), rel=0.02)


def test_percentiles_are_by_nearest_rank() -> None:
    assert [percent_point([1.0, 2.0, 3.0, 4.0], percent) for percent in (0, 50, 99)] == [1.0, 2.0, 4.0]
    assert percent_point([], 50) == 0.0


@pytest.mark.parametrize("count", [1, 48, 99, 100, 1000])
def test_p99_of_few_requests_is_said_to_be_the_slowest(count: int) -> None:
    values = [float(number) for number in range(count)]
    is_slowest = percent_point(values, 99) == values[-1]
    assert bool(few_notes(count)) == is_slowest


@pytest.mark.parametrize(
    ("speeds", "expected"), [({1: 10, 2: 19, 4: 35, 8: 45}, 4), ({1: 10, 2: 11}, 1), ({1: 10, 2: 20}, 2)]
)
def test_the_knee_is_where_doubling_stops_to_pay(speeds: dict[int, float], expected: int) -> None:
    assert knee(speeds) == expected


@pytest.mark.parametrize(("limit", "expected"), [(3.0, 0.0), (9.0, 9.0), (50.0, MOST_RATE)])
def test_the_most_rate_is_within_its_range_or_says_on_which_side(limit: float, expected: float) -> None:
    """Requests whose rate is up to the limit keep the promise."""

    def serve(asks: Sequence[LoadAsk]) -> list[ServedRequest]:
        rate = len(asks) / asks[-1].arrival_s
        return [ServedRequest(ttft_s=0.1 if rate <= limit else 9.0, tpot_s=0.01)] * len(asks)

    assert most_rate(serve, 1000, 8, 0) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("end", [0.0, MOST_RATE])
def test_a_gain_at_an_end_of_the_range_is_none(end: float) -> None:
    rates = dict.fromkeys(ARMS, LEAST_RATE)
    assert own_gain(rates) is not None
    assert own_gain(dict.fromkeys(ARMS, end)) is None


@pytest.mark.parametrize(
    ("text", "is_code"),
    [
        ("def f():\n    return 1\nhalf a li", True),
        ("    def test_x(self):\n        pass\n", True),
        ("def f(:\n", False),
        ("x = '\\d'\n", True),
        ("x = \0\n", False),
    ],
)
def test_what_parses_is_python_up_to_the_last_whole_line(text: str, is_code: bool) -> None:
    assert parses(text) is is_code


def test_the_formula_of_a_tokens_kv_is_what_the_engine_has(tmp_path: Path) -> None:
    conditions = RowConditions(form=RowForm.SMOKE, model=ROOT / "models" / "base", folder=tmp_path)
    assert load_model(conditions).runner.info.geometry.token_bytes == token_bytes_of(conditions)
