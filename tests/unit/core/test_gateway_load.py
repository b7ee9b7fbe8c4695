"""Times to the first token as counts that can be added."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from stratos.core.gateway_load import NUM_TTFT_COUNTS, TTFT_BOUNDS_S, GatewayLoad, ttft_percentile, ttft_place


def load(*times_s: float) -> GatewayLoad:
    counts = [0] * NUM_TTFT_COUNTS
    for time_s in times_s:
        counts[ttft_place(time_s)] += 1
    return GatewayLoad(gateway="g", model_digest="m", first_tokens=tuple(counts))


def test_the_marks_of_the_planner_are_bounds() -> None:
    assert {0.5, 1.0} < set(TTFT_BOUNDS_S)
    assert ttft_percentile([load(1.0)], 0.95) == 1.0
    assert (ttft_percentile([load(1.001)], 0.95) or 0) > 1.0


def test_without_first_tokens_there_is_no_percentile() -> None:
    assert ttft_percentile([], 0.95) is None
    assert ttft_percentile([load(), GatewayLoad(gateway="h", model_digest="m")], 0.95) is None


@given(
    times=st.lists(st.lists(st.floats(0.02, 60.0), max_size=30), min_size=1, max_size=4),
    share=st.sampled_from([0.5, 0.95, 0.99]),
)
def test_the_percentile_of_all_gateways_is_within_one_bound_of_the_exact_one(times, share) -> None:
    known = sorted(time_s for of_gateway in times for time_s in of_gateway)
    found = ttft_percentile([load(*of_gateway) for of_gateway in times], share)
    if not known:
        assert found is None
        return
    exact = known[math.ceil(share * len(known)) - 1]
    assert found is not None
    assert exact <= found <= exact * 2**0.25 + 1e-9


def test_what_is_slower_than_the_last_bound_is_not_lost() -> None:
    assert ttft_percentile([load(500.0)], 0.95) == float("inf")
