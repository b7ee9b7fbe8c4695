"""Liveness verdicts and the booking ledger under a fake clock."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stratos.common.clock import FakeClock
from stratos.routing.bookings import Booking, BookingLedger
from stratos.routing.liveness import OutReason, WorkerLiveness
from stratos.routing.settings import BookingConfig, LivenessConfig
from tests.support.worlds.fleet_samples import make_request, make_status

INCARNATION = "inc-decode-0"


def test_out_when_unknown_lost_silent_and_in_again_when_statuses_flow() -> None:
    clock, liveness = FakeClock(), WorkerLiveness(LivenessConfig())
    assert liveness.out_reason(clock.now()) is OutReason.UNKNOWN
    liveness.on_status(make_status(), clock.now())
    clock.advance(1.5)
    assert liveness.out_reason(clock.now()) is None
    clock.advance(0.01)
    assert liveness.out_reason(clock.now()) is OutReason.SILENT
    liveness.on_status(make_status(), clock.now())
    assert liveness.out_reason(clock.now()) is None
    liveness.on_lost()
    assert liveness.out_reason(clock.now()) is OutReason.LOST
    liveness.on_status(make_status(), clock.now())
    assert liveness.out_reason(clock.now()) is None


def _run(steps: list[tuple[int, bool]], *, interval_s: float = 0.125) -> list[OutReason | None]:
    """Verdict after each status (step counter, is computing)."""
    clock, liveness, verdicts = FakeClock(), WorkerLiveness(LivenessConfig()), []
    for step, is_computing in steps:
        clock.advance(interval_s)
        liveness.on_status(make_status(step=step, is_computing=is_computing), clock.now())
        verdicts.append(liveness.out_reason(clock.now()))
    return verdicts


def test_a_step_loop_that_stands_still_while_it_computes_is_hung_until_it_moves() -> None:
    verdicts = _run([(7, True)] * 18 + [(8, True)])
    assert verdicts[:17] == [None] * 17
    assert verdicts[17] is OutReason.HUNG
    assert verdicts[18] is None


def test_a_worker_of_slow_steps_gets_more_time() -> None:
    clock, liveness = FakeClock(), WorkerLiveness(LivenessConfig())
    for _ in range(8):
        liveness.on_status(make_status(step=7, is_computing=True, slow_step_s=1.0), clock.now())
        assert liveness.out_reason(clock.now()) is None
        clock.advance(0.5)
    clock.advance(0.1)
    assert liveness.out_reason(clock.now()) is OutReason.HUNG


def test_an_idle_worker_is_never_hung_and_work_after_idling_starts_the_clock_anew() -> None:
    assert set(_run([(7, False)] * 60 + [(7, True)] * 17)) == {None}
    assert set(_run([(step, True) for step in range(60)])) == {None}


def test_draining_and_not_ready_are_out() -> None:
    clock, liveness = FakeClock(), WorkerLiveness(LivenessConfig())
    liveness.on_status(make_status(is_draining=True), clock.now())
    assert liveness.out_reason(clock.now()) is OutReason.DRAINING
    liveness.on_status(make_status(not_ready_reason="loading"), clock.now())
    assert liveness.out_reason(clock.now()) is OutReason.NOT_READY


def book(ledger: BookingLedger, handoff_id: str, now: float, **changes: Any) -> None:
    request = make_request(handoff_id, **changes)
    ledger.add(
        Booking(
            handoff_id=handoff_id,
            request=request,
            decode_incarnation=INCARNATION,
            prefill_incarnation="inc-p",
            num_blocks=6,
            at=now,
        )
    )


def test_a_status_makes_bookings_old_and_an_end_removes_them() -> None:
    clock, ledger = FakeClock(), BookingLedger(BookingConfig())
    ledger.on_status(make_status(), clock.now())
    clock.advance(0.1)
    book(ledger, "h1", clock.now())
    assert ledger.fresh(INCARNATION).num_seqs == ledger.held(INCARNATION).num_seqs == 1
    assert ledger.fresh("inc-p").num_prefill_tokens == 64
    clock.advance(0.1)
    ledger.on_status(make_status(num_running=1), clock.now())
    assert ledger.fresh(INCARNATION).num_seqs == 0
    assert ledger.held(INCARNATION).num_blocks == 6
    clock.advance(0.03)
    assert ledger.end("h1", clock.now(), has_finished=True) is not None
    assert ledger.end("h1", clock.now(), has_finished=True) is None
    assert ledger.num_ended_seqs(INCARNATION) == 1
    ledger.on_status(make_status(), clock.now())
    assert ledger.num_ended_seqs(INCARNATION) == 0


def test_a_placement_on_its_way_stays_fresh_and_an_end_that_a_status_may_show_frees_nothing() -> None:
    clock, ledger = FakeClock(), BookingLedger(BookingConfig(flight_s=0.05, report_s=0.02))
    book(ledger, "h1", clock.now())
    clock.advance(0.01)
    ledger.on_status(make_status(), clock.now())
    assert ledger.fresh(INCARNATION).num_seqs == 1, "the status was on its way before the placement arrived"
    clock.advance(0.1)
    ledger.on_status(make_status(num_running=1), clock.now())
    assert ledger.fresh(INCARNATION).num_seqs == 0
    clock.advance(0.01)
    ledger.end("h1", clock.now(), has_finished=True)
    assert ledger.num_ended_seqs(INCARNATION) == 0
    ledger.on_status(make_status(), clock.now())
    book(ledger, "h2", clock.now() - 1)
    clock.advance(0.1)
    ledger.end("h2", clock.now())
    assert ledger.num_ended_seqs(INCARNATION) == 0, "refused or lost: its place was never taken, or is not free yet"


def test_a_placement_at_the_very_instant_of_a_status_is_fresh_if_it_came_after() -> None:
    clock, ledger = FakeClock(), BookingLedger(BookingConfig(flight_s=0.0, report_s=0.0))
    book(ledger, "before", clock.now())
    ledger.on_status(make_status(num_running=1), clock.now())
    assert ledger.fresh(INCARNATION).num_seqs == 0
    book(ledger, "after", clock.now())
    assert ledger.fresh(INCARNATION).num_seqs == 1
    ledger.on_status(make_status(num_running=2), clock.now())
    assert ledger.fresh(INCARNATION).num_seqs == 0


def test_bookings_whose_end_nobody_reported_go_with_the_workers_own_count_or_the_lease() -> None:
    clock, ledger = FakeClock(), BookingLedger(BookingConfig(confirm_s=5, lease_s=60))
    for index in range(4):
        book(ledger, f"h{index}", clock.now())
    clock.advance(4)
    ledger.on_status(make_status(), clock.now())
    assert len(ledger) == 4, "too early to tell"
    clock.advance(2)
    ledger.on_status(make_status(num_running=2), clock.now())
    assert len(ledger) == 2
    assert ledger.fresh("inc-p").num_requests == 2
    ledger.on_status(make_status("p"), clock.now())
    assert ledger.fresh("inc-p").num_requests == 0
    clock.advance(60)
    assert ledger.expire(clock.now()) == 2
    assert len(ledger) == 0


def test_a_gone_incarnation_takes_its_bookings_along() -> None:
    ledger = BookingLedger(BookingConfig())
    book(ledger, "h1", 0.0)
    ledger.forget_worker(INCARNATION)
    assert len(ledger) == 0
    assert ledger.end("h1", 1.0) is None


@given(st.lists(st.tuples(st.sampled_from(["add", "end", "status", "forget"]), st.integers(0, 9)), max_size=60))
def test_held_is_the_sum_of_what_is_open(operations) -> None:
    clock, ledger, opened = FakeClock(), BookingLedger(BookingConfig()), {}
    for kind, value in operations:
        clock.advance(0.01)
        if kind == "add" and value not in opened:
            book(ledger, str(value), clock.now(), num_choices=value + 1)
            opened[value] = value + 1
        elif kind == "end":
            assert (ledger.end(str(value), clock.now()) is not None) == (opened.pop(value, None) is not None)
        elif kind == "status":
            ledger.on_status(make_status(num_running=value), clock.now())
        elif kind == "forget":
            ledger.forget_worker(INCARNATION)
            opened.clear()
        assert ledger.held(INCARNATION).num_seqs == sum(opened.values())
        assert len(ledger) == len(opened)
