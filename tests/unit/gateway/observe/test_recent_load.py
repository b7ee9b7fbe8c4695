"""What a gateway reports: the last minute, no more."""

from __future__ import annotations

from itertools import pairwise

from stratos.common.clock import FakeClock
from stratos.core.gateway_load import ttft_percentile
from stratos.core.ledger.pricing import Times
from stratos.core.requests.limits import BATCH_CLASS
from stratos_gateway.observe.recent_load import BACKLOG_KEPT_S, IDLE_REPORT_S, RecentLoad
from stratos_router.gateway_loads import KEPT_S


def test_a_report_holds_what_is_open_and_the_answers_of_the_last_minute() -> None:
    clock = FakeClock()
    recent = RecentLoad("inc-1", clock)
    recent.note("digest", Times(ttft_us=2_000_000, itl_us=None), {"ttft": False})
    clock.advance(30)
    recent.note("digest", Times(ttft_us=100_000, itl_us=None), {"ttft": True, "itl": False})
    recent.note("digest", Times(ttft_us=100_000, itl_us=None), {"ttft": True})
    recent.note("digest", Times(ttft_us=100_000, itl_us=None), {})
    recent.note("digest", Times(), {})
    ends = [recent.begin("digest"), recent.begin("digest"), recent.begin("")]
    [report] = recent.now()
    for end in ends:
        end()
    assert (report.gateway, report.model_digest, report.num_open) == ("inc-1", "digest", 2)
    assert (report.num_judged, report.num_violations, sum(report.first_tokens)) == (3, 2, 4)
    assert ttft_percentile([report], 0.95) == 2.0
    clock.advance(31)
    [report] = recent.now()
    assert (report.num_judged, report.num_violations, sum(report.first_tokens)) == (2, 1, 3)
    clock.advance(60)
    assert not recent.now()


def test_each_model_has_a_report_of_its_own_until_its_end_was_told() -> None:
    clock = FakeClock()
    recent = RecentLoad("inc-1", clock)
    end = recent.begin("a")
    recent.note("b", Times(ttft_us=100_000, itl_us=None), {})
    assert {load.model_digest: (load.num_open, sum(load.first_tokens)) for load in recent.now()} == {
        "a": (1, 0),
        "b": (0, 1),
    }
    end()
    assert {load.model_digest: load.num_open for load in recent.now()} == {"a": 0, "b": 0}
    clock.advance(61)
    assert not recent.now()


def test_an_idle_model_is_told_as_0_before_routers_forget_its_gateway() -> None:
    """Else an HPA of gateways has no number once the load is gone, and keeps all of them."""
    clock = FakeClock()
    recent = RecentLoad("inc-1", clock, lambda: ["a", "b"])
    told = []
    for _ in range(30):
        told += [(clock.now(), load.model_digest, load.num_open) for load in recent.now()]
        clock.advance(1)
    assert {digest for _, digest, _ in told} == {"a", "b"}
    assert {num_open for *_, num_open in told} == {0}
    times = sorted({at for at, *_ in told})
    assert max(later - earlier for earlier, later in pairwise(times)) < KEPT_S / 3 + 0.1
    assert len(told) == 2 * 10, "and not every second"
    end = recent.begin("a")
    assert [(load.model_digest, load.num_open) for load in recent.now()] == [("a", 1), ("b", 0)]
    end()


def test_batches_belong_to_the_first_model_and_are_told_while_they_are_known() -> None:
    clock = FakeClock()
    recent = RecentLoad("inc-1", clock, lambda: ["a", "b"])

    def told() -> dict[str, tuple[int | None, int | None]]:
        clock.advance(IDLE_REPORT_S)
        return {load.model_digest: (load.num_batch_lines, load.num_batch_lines_due) for load in recent.now()}

    nothing = {"a": (None, None), "b": (None, None)}
    assert told() == nothing, "one that was started while Redis is away"
    recent.note_backlog(700, 30)
    assert told() == {**nothing, "a": (700, 30)}
    clock.advance(BACKLOG_KEPT_S)
    assert told() == nothing, "one that is cut off"


def test_it_tells_how_long_ago_a_client_was_there_and_batches_are_none() -> None:
    clock = FakeClock()
    recent = RecentLoad("inc-1", clock)
    line, client = recent.begin("a", BATCH_CLASS), recent.begin("a")
    assert [load.client_age_ms for load in recent.now()] == [0]
    client()
    clock.advance(1.5)
    assert [(load.num_open, load.client_age_ms) for load in recent.now()] == [(1, 1500)]
    clock.advance(60.0)
    assert [(load.num_open, load.client_age_ms) for load in recent.now()] == [(1, None)]
    line()
