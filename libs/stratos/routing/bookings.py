"""Placements that have not ended, per worker incarnation.

A booking is provisional.  It goes when its attempt is reported as ended, when its worker shows fewer requests
than are booked on it (an end that was not reported), when its incarnation is gone, or after a lease.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from stratos.common.changed import changed, record
from stratos.core.fleet import WorkerStatus
from stratos.core.placement import PlacementRequest
from stratos.routing.settings import BookingConfig
from stratos.routing.worker_view import NO_LOAD, BookedLoad

NEVER = (float("-inf"), 0)


@record(frozen=True, slots=True, kw_only=True)
class Booking:
    """One placement."""

    handoff_id: str
    request: PlacementRequest
    decode_incarnation: str
    """Incarnation of the worker that runs it: a decode worker, or for embeddings a prefill worker."""
    prefill_incarnation: str = ""
    num_blocks: int
    at: float
    order: int = 0
    """Place among the placements and statuses of the ledger, which gives it: times of a virtual clock may be equal."""

    @property
    def num_seqs(self) -> int:
        return max(1, self.request.num_choices)

    @property
    def decode_load(self) -> BookedLoad:
        return BookedLoad(
            num_requests=1,
            num_seqs=self.num_seqs,
            num_lowest_seqs=self.num_seqs if self.request.takes_spot else 0,
            num_blocks=self.num_blocks,
            num_prefill_tokens=0 if self.prefill_incarnation else self.request.num_prompt_tokens,
        )

    @property
    def prefill_load(self) -> BookedLoad:
        return BookedLoad(num_requests=1, num_prefill_tokens=self.request.num_prompt_tokens)


class BookingLedger:
    """All bookings of one router."""

    def __init__(self, settings: BookingConfig) -> None:
        self._settings = settings
        self._open: dict[str, Booking] = {}
        self._by_decode: dict[str, dict[str, Booking]] = {}
        self._by_prefill: dict[str, dict[str, Booking]] = {}
        self._held: dict[str, BookedLoad] = {}
        self._order = itertools.count(1)
        self._status_at: dict[str, tuple[float, int]] = {}
        """Time and order of each worker's last status."""
        self._num_ended_seqs: dict[str, int] = {}
        self._refusing: set[str] = set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, booking: Booking) -> None:
        """Book a placement."""
        booking = changed(booking, order=next(self._order))
        self._open[booking.handoff_id] = booking
        self._by_decode.setdefault(booking.decode_incarnation, {})[booking.handoff_id] = booking
        self._held[booking.decode_incarnation] = self.held(booking.decode_incarnation) + booking.decode_load
        if booking.prefill_incarnation:
            self._by_prefill.setdefault(booking.prefill_incarnation, {})[booking.handoff_id] = booking

    def end(
        self, handoff_id: str, now: float, *, has_finished: bool = False, has_failed: bool = False
    ) -> Booking | None:
        """An attempt was reported as ended; ``None`` when it is not booked (any more).

        The places of one that finished are free before the next status shows it.  A worker that has just refused one
        may have less room than its status says.
        """
        booking = self._remove(handoff_id)
        if booking is not None and has_failed and self._is_fresh(booking, booking.decode_incarnation):
            self._refusing.add(booking.decode_incarnation)
        if booking is not None and has_finished and not self._is_fresh(booking, booking.decode_incarnation):
            incarnation, seqs = booking.decode_incarnation, self._num_ended_seqs
            # An end that is reported shortly after a status may be in that status already.
            if now - self._status_at[incarnation][0] >= self._settings.report_s:
                seqs[incarnation] = seqs.get(incarnation, 0) + booking.decode_load.num_seqs
        return booking

    def on_status(self, status: WorkerStatus, now: float) -> None:
        """A worker's status replaces what was guessed since the one before."""
        incarnation = status.ref.incarnation
        self._status_at[incarnation] = now, next(self._order)
        self._num_ended_seqs.pop(incarnation, None)
        self._refusing.discard(incarnation)
        for booking in list(self._confirmed(self._by_prefill.get(incarnation, {}), now)):
            del self._by_prefill[incarnation][booking.handoff_id]
        self._trim(status, now)

    def forget_worker(self, incarnation: str) -> None:
        """A worker process is gone for good."""
        for handoff_id in list(self._by_decode.get(incarnation, {})):
            self._remove(handoff_id)
        self._by_decode.pop(incarnation, None)
        self._held.pop(incarnation, None)
        self._by_prefill.pop(incarnation, None)
        self._status_at.pop(incarnation, None)
        self._num_ended_seqs.pop(incarnation, None)
        self._refusing.discard(incarnation)

    def expire(self, now: float) -> int:
        """Drop bookings whose lease is over; returns how many."""
        old = [b.handoff_id for b in self._open.values() if now - b.at > self._settings.lease_s]
        for handoff_id in old:
            self._remove(handoff_id)
        return len(old)

    def fresh(self, incarnation: str) -> BookedLoad:
        """Placements that the worker's last status may not show yet."""
        loads = [booking.decode_load for booking in self._fresh(self._by_decode, incarnation)]
        loads += [booking.prefill_load for booking in self._fresh(self._by_prefill, incarnation)]
        if len(loads) <= 1:
            return loads[0] if loads else NO_LOAD
        return BookedLoad(
            num_requests=len(loads),
            num_seqs=sum(load.num_seqs for load in loads),
            num_blocks=sum(load.num_blocks for load in loads),
            num_prefill_tokens=sum(load.num_prefill_tokens for load in loads),
        )

    def fresh_adapters(self, incarnation: str) -> frozenset[str]:
        """Adapters of those placements."""
        adapters = {b.request.terms.adapter.digest for b in self._fresh(self._by_decode, incarnation)}
        return frozenset(adapters - {""})

    def held(self, incarnation: str) -> BookedLoad:
        """All placements on the decode worker that have not ended."""
        return self._held.get(incarnation, NO_LOAD)

    def oldest_first(self, incarnation: str) -> Iterator[Booking]:
        """Placements on the worker that have not ended."""
        yield from self._by_decode.get(incarnation, {}).values()

    def num_ended_seqs(self, incarnation: str) -> int:
        """Sequences that ended since the last status, which therefore still counts them."""
        return self._num_ended_seqs.get(incarnation, 0)

    def has_refused(self, incarnation: str) -> bool:
        """A placement that the last status does not show failed there."""
        return incarnation in self._refusing

    def _fresh(self, by_worker: dict[str, dict[str, Booking]], incarnation: str) -> Iterator[Booking]:
        """Newest first: bookings are kept in the order in which they were made."""
        status_at, order = self._status_at.get(incarnation, NEVER)
        since = status_at - self._settings.flight_s
        for booking in reversed(by_worker.get(incarnation, {}).values()):
            if booking.order <= order and booking.at <= since:
                return
            yield booking

    def _is_fresh(self, booking: Booking, incarnation: str) -> bool:
        """The last status came before the placement, or when that was still on its way."""
        status_at, order = self._status_at.get(incarnation, NEVER)
        return booking.order > order or booking.at > status_at - self._settings.flight_s

    def _trim(self, status: WorkerStatus, now: float) -> None:
        """Old bookings beyond what the worker shows have ended without a report; the oldest go first."""
        shown = status.num_seqs + status.num_orphans
        if self.held(status.ref.incarnation).num_seqs <= shown:
            return
        old = list(self._confirmed(self._by_decode.get(status.ref.incarnation, {}), now))
        surplus = sum(booking.decode_load.num_seqs for booking in old) - shown
        for booking in old:
            num_seqs = booking.decode_load.num_seqs
            if num_seqs <= surplus:
                surplus -= num_seqs
                self._remove(booking.handoff_id)

    def _confirmed(self, bookings: dict[str, Booking], now: float) -> Iterator[Booking]:
        """Bookings that a status must show by now, oldest first."""
        return itertools.takewhile(lambda one: now - one.at > self._settings.confirm_s, bookings.values())

    def _remove(self, handoff_id: str) -> Booking | None:
        booking = self._open.pop(handoff_id, None)
        if booking is not None:
            self._by_decode[booking.decode_incarnation].pop(handoff_id)
            self._held[booking.decode_incarnation] -= booking.decode_load
            self._by_prefill.get(booking.prefill_incarnation, {}).pop(handoff_id, None)
        return booking
