"""What the router knows of its workers: discovery's list, their last statuses, liveness, bookings.

Synchronous and owned by the event loop; time is an argument.  ``views`` is what placement looks at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stratos.core.fleet import FleetWorker, WorkerStatus
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.routing.bookings import Booking, BookingLedger
from stratos.routing.liveness import Liveness, OutReason
from stratos.routing.settings import LivenessConfig
from stratos.routing.worker_view import WorkerView
from stratos_router.discovery import Member
from stratos_router.metrics import RouterMetrics

_log = logging.getLogger(__name__)


class _Record:
    """One member with its verdict."""

    def __init__(self, member: Member, settings: LivenessConfig) -> None:
        self.member = member
        self.liveness = Liveness(settings)
        self.was_live = False
        self.view: WorkerView | None = None
        """Made again when the status, the bookings or the verdict changed."""

    def ref(self) -> WorkerRef:
        """Discovery's name, if it has one, and address; the worker's own incarnation and role."""
        status, member = self.liveness.status, self.member
        own_name = "" if status is None or member.is_named else status.ref.worker_id
        return WorkerRef(
            worker_id=own_name or member.worker_id,
            incarnation="" if status is None else status.ref.incarnation,
            address=member.address,
            role=member.role if status is None else status.ref.role,
        )


class FleetState:
    """Every worker that discovery names.

    Args:
        settings: when a worker is out.
        bookings: placements that have not ended; this class tells it of statuses and of workers that are gone.
        metrics: evictions are counted there.
    """

    def __init__(self, settings: LivenessConfig, bookings: BookingLedger, metrics: RouterMetrics) -> None:
        self._settings = settings
        self._bookings = bookings
        self._metrics = metrics
        self._records: dict[str, _Record] = {}
        self._prefill_models: frozenset[str] = frozenset()
        self._views: tuple[WorkerView, ...] = ()
        self._views_at = (-1, 0.0)
        """Version and time of ``_views``: a call of the router looks at them several times."""
        self.version = 0
        """Moves whenever placement could turn out differently."""

    def set_members(self, members: Sequence[Member]) -> None:
        """Discovery has a new list. A member at another address starts without a history."""
        self.version += 1
        wanted = {member.worker_id: member for member in members}
        for worker_id, record in list(self._records.items()):
            if wanted.get(worker_id) != record.member:
                _log.info("worker %s at %s left discovery", worker_id, record.member.address)
                del self._records[worker_id]
                self._forget(record.liveness.status)
        for worker_id, member in wanted.items():
            if worker_id not in self._records:
                _log.info("worker %s at %s was discovered", worker_id, member.address)
                self._records[worker_id] = _Record(member, self._settings)

    def on_status(self, worker_id: str, status: WorkerStatus, now: float) -> None:
        record = self._records.get(worker_id)
        if record is None:
            return
        self.version += 1
        last, record.view = record.liveness.status, None
        record.liveness.on_status(status, now)
        self._bookings.on_status(status, now)
        if last is not None and last.ref.incarnation != status.ref.incarnation:
            _log.warning("worker %s was replaced by incarnation %s", worker_id, status.ref.incarnation)
            self._forget(last)
        self._note(record, now)

    def on_lost(self, worker_id: str, now: float) -> None:
        """The status stream of a worker broke."""
        record = self._records.get(worker_id)
        if record is not None:
            self.version += 1
            record.liveness.on_lost()
            self._note(record, now)

    def observe(self, now: float) -> None:
        """Time passed: notice workers that fell silent or hang."""
        for record in self._records.values():
            self._note(record, now)

    def book(self, booking: Booking) -> None:
        """A placement was made."""
        self._bookings.add(booking)
        self._booked(booking)

    def end(self, handoff_id: str, now: float, *, has_finished: bool = False) -> Booking | None:
        """An attempt ended."""
        booking = self._bookings.end(handoff_id, now, has_finished=has_finished)
        if booking is not None:
            self._booked(booking)
        return booking

    def expire(self, now: float) -> None:
        """Drop bookings whose lease is over."""
        if self._bookings.expire(now):
            self.version += 1
            for record in self._records.values():
                record.view = None

    def views(self, now: float) -> tuple[WorkerView, ...]:
        """Every worker that has ever sent a status, live or not."""
        if self._views_at == (self.version, now):
            return self._views
        views: dict[str, WorkerView] = {}
        for record in self._records.values():
            view = self._view(record, now)
            if view is not None:
                views[view.ref.incarnation] = view  # two members may name one process
        self._views, self._views_at = tuple(views.values()), (self.version, now)
        return self._views

    def has_prefill(self, model_digest: str) -> bool:
        """Some prefill worker of the model may be chosen, so that prompts come by hand-off."""
        return model_digest in self._prefill_models

    def workers(self, now: float) -> tuple[FleetWorker, ...]:
        """Every member, for people and for the autoscaler."""
        return tuple(self._describe(record, now) for record in self._records.values())

    def _view(self, record: _Record, now: float) -> WorkerView | None:
        status = record.liveness.status
        if status is None:
            return None
        out_reason = record.liveness.out_reason(now) or ""
        if record.view is None or record.view.out_reason != out_reason:
            ref = record.ref()
            record.view = WorkerView(
                ref=ref,
                status=replace(status, ref=ref),
                out_reason=out_reason,
                age_s=now - record.liveness.status_at,
                moved_at=record.liveness.moved_at,
                fresh=self._bookings.fresh(ref.incarnation),
                held=self._bookings.held(ref.incarnation),
                fresh_adapters=self._bookings.fresh_adapters(ref.incarnation) - status.resident_adapters,
                num_ended_seqs=self._bookings.num_ended_seqs(ref.incarnation),
            )
        return record.view

    def _booked(self, booking: Booking) -> None:
        self.version += 1
        for record in self._records.values():
            view = record.view
            if view and view.ref.incarnation in (booking.decode_incarnation, booking.prefill_incarnation):
                record.view = None

    def _describe(self, record: _Record, now: float) -> FleetWorker:
        liveness, ref = record.liveness, record.ref()
        reason = liveness.out_reason(now)
        text = "" if reason is None else reason.value
        if reason is OutReason.NOT_READY and liveness.status is not None:
            text = f"{reason.value}: {liveness.status.not_ready_reason}"
        return FleetWorker(
            ref=ref,
            status=liveness.status,
            is_live=reason is None,
            out_reason=text,
            age_s=0.0 if liveness.status is None else now - liveness.status_at,
            num_booked=self._bookings.fresh(ref.incarnation).num_requests,
        )

    def _note(self, record: _Record, now: float) -> None:
        reason = record.liveness.out_reason(now)
        if reason is None and not record.was_live:
            _log.info("worker %s is in", record.member.worker_id)
        elif reason is not None and record.was_live:
            _log.warning("worker %s is out: %s", record.member.worker_id, reason.value)
            self._metrics.evictions.labels(record.ref().role, reason.value).inc()
        if record.was_live != (reason is None):
            record.was_live = reason is None
            self._prefill_models = frozenset(self._live_prefill_models())

    def _live_prefill_models(self) -> Iterator[str]:
        for record in self._records.values():
            status = record.liveness.status
            if record.was_live and status is not None and status.ref.role is WorkerRole.PREFILL:
                yield status.identity.model_digest

    def _forget(self, status: WorkerStatus | None) -> None:
        """A process is gone, unless another member names it too."""
        if status is None:
            return
        known = [r.liveness.status for r in self._records.values()]
        if all(s is None or s.ref.incarnation != status.ref.incarnation for s in known):
            self._bookings.forget(status.ref.incarnation)
