"""What is left out of a decision for speed changes no verdict."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from stratos.core.placement import WorkerRole
from stratos.core.requests.limits import BATCH_CLASS
from stratos.routing.filters import DECODE_FILTERS, EMBEDDING_FILTERS, deciding_filters, first_rejection
from stratos.routing.picker import eligible
from stratos.routing.worker_view import BookedLoad
from tests.support.worlds.fleet_samples import IDENTITY, ledger, make_sample_ask, make_view

views = st.builds(
    make_view,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(list(WorkerRole)),
    blocks=st.builds(ledger, st.sampled_from([4, 20, 1000]), allocated=st.integers(0, 4)),
    num_running=st.integers(0, 12),
    version=st.integers(1, 2),
    features=st.sampled_from([frozenset(), frozenset({"x"})]),
    out_reason=st.sampled_from(["", "lost"]),
    is_spot=st.booleans(),
    identity=st.sampled_from([IDENTITY, dataclasses.replace(IDENTITY, model_digest="cd")]),
)
asks = st.builds(
    make_sample_ask,
    required_features=st.sampled_from([frozenset(), frozenset({"x"})]),
    excluded_incarnations=st.sampled_from([frozenset(), frozenset({"inc-a"})]),
    refusals=st.sampled_from([{}, {"inc-b": 1}]),
    num_prompt_tokens=st.sampled_from([16, 64, 300]),
    priority_class=st.sampled_from([0, BATCH_CLASS]),
)


@given(
    fleet=st.lists(views, max_size=6),
    ask=asks,
    closed=st.sampled_from([frozenset(), frozenset({"inc-c"})]),
    filters=st.sampled_from([DECODE_FILTERS, EMBEDDING_FILTERS]),
)
def test_a_decision_gives_every_worker_the_verdict_of_all_filters(fleet, ask, closed, filters) -> None:
    ask = dataclasses.replace(ask, closed=closed)
    able, rejections = eligible(fleet, ask, filters, [])
    verdicts = [first_rejection(view, ask, filters) for view in fleet]
    assert able == [view for view, verdict in zip(fleet, verdicts, strict=True) if verdict is None]
    assert sorted(rejections.elements()) == sorted(verdict for verdict in verdicts if verdict is not None)


def test_a_plain_request_asks_fewer_filters() -> None:
    assert len(deciding_filters(make_sample_ask(), DECODE_FILTERS)) <= len(DECODE_FILTERS) - 3


@given(fleet=st.lists(views, max_size=6), ask=asks)
def test_what_surely_fits_passes_every_filter(fleet, ask) -> None:
    for view, is_sure in zip(fleet, ask.surely_fits(fleet), strict=True):
        if is_sure:
            assert first_rejection(view, ask, DECODE_FILTERS) is None


def test_what_surely_fits_is_known_for_most_requests_and_not_where_routers_share_a_worker() -> None:
    free, full = make_view(num_running=7), make_view(num_running=8)  # the queue of a worker is a matter of the filters
    shared = make_view(num_routers=2, fresh=BookedLoad(num_requests=1))
    assert make_sample_ask().surely_fits([free, full, shared]) == [True, False, False]
