"""What a gateway reports: the last minute, no more."""

from __future__ import annotations

from stratos.common.clock import FakeClock
from stratos.core.gateway_load import ttft_percentile
from stratos.core.ledger.pricing import Times
from stratos_gateway.observe.recent_load import RecentLoad


def test_a_report_holds_what_is_open_and_the_answers_of_the_last_minute() -> None:
    clock, num_open = FakeClock(), 3
    recent = RecentLoad("inc-1", "digest", lambda: num_open, clock)
    recent.note(Times(ttft_us=2_000_000, itl_us=None), {"ttft": False})
    clock.advance(30)
    recent.note(Times(ttft_us=100_000, itl_us=None), {"ttft": True, "itl": False})
    recent.note(Times(ttft_us=100_000, itl_us=None), {"ttft": True})
    recent.note(Times(ttft_us=100_000, itl_us=None), {})
    recent.note(Times(), {})
    report = recent.now()
    assert (report.gateway, report.model_digest, report.num_open) == ("inc-1", "digest", 3)
    assert (report.num_judged, report.num_violations, sum(report.first_tokens)) == (3, 2, 4)
    assert ttft_percentile([report], 0.95) == 2.0
    clock.advance(31)
    report = recent.now()
    assert (report.num_judged, report.num_violations, sum(report.first_tokens)) == (2, 1, 3)
    clock.advance(60)
    assert ttft_percentile([recent.now()], 0.95) is None
