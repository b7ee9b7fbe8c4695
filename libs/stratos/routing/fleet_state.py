"""The fleet as one router knows it: the list of members, their last statuses, liveness, bookings.

Belongs to one thread; time is an argument.  ``views`` is what placement looks at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from stratos.common.ids import new_incarnation
from stratos.core.fleet import FleetWorker, WorkerStatus
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.routing.bookings import Booking, BookingLedger
from stratos.routing.fleet_views import FleetViews
from stratos.routing.liveness import OutReason, WorkerLiveness
from stratos.routing.settings import LivenessConfig
from stratos.routing.worker_view import WorkerView, num_sharing

_log = logging.getLogger(__name__)
NO_ADAPTERS: frozenset[str] = frozenset()
OBSERVE_S = 0.05
"""How often silence and standing still are looked for; a status that shows it counts at once."""


@dataclass(frozen=True, slots=True)
class Member:
    """One worker that should exist."""

    worker_id: str
    address: str
    role: WorkerRole
    is_named: bool = True
    """The id is the deployment's; else it is the address, until the worker's own name is known."""


def ignore_eviction(role: WorkerRole, reason: OutReason) -> None:
    """Count nothing."""


class _Record:
    """One member with its verdict."""

    def __init__(self, member: Member, settings: LivenessConfig) -> None:
        self.member = member
        self.liveness = WorkerLiveness(settings)
        self.reason: OutReason | None = OutReason.UNKNOWN
        """Why it may not be chosen, as of the last look."""
        self._told: WorkerRef | None = None
        self._ref: WorkerRef | None = None
        """What ``told`` comes to."""

    def ref(self) -> WorkerRef:
        """Discovery's name, if it has one, and address; the worker's own incarnation and role."""
        status = self.liveness.status
        told = None if status is None else status.ref
        if self._ref is None or told != self._told:
            self._told, self._ref = told, self._make_ref()
        return self._ref

    def _make_ref(self) -> WorkerRef:
        status, member = self.liveness.status, self.member
        own_name = "" if status is None or member.is_named else status.ref.worker_id
        return WorkerRef(
            worker_id=own_name or member.worker_id,
            incarnation="" if status is None else status.ref.incarnation,
            address=member.address,
            role=member.role if status is None else status.ref.role,
        )


class FleetState:
    """Every member.

    Args:
        settings: when a worker is out.
        bookings: placements that have not ended; kept up to date with statuses and with workers that are gone.
        on_evicted: called when a live worker goes out, with its role and why.
    """

    def __init__(
        self,
        settings: LivenessConfig,
        bookings: BookingLedger,
        on_evicted: Callable[[WorkerRole, OutReason], None] = ignore_eviction,
    ) -> None:
        self._settings = settings
        self.router = new_incarnation()
        """This process, as the ids of its hand-offs name it."""
        self.bookings = bookings
        self._on_evicted = on_evicted
        self._records: dict[str, _Record] = {}
        self._live_models: frozenset[tuple[WorkerRole, str]] = frozenset()
        """Without what spot workers alone serve."""
        self._views = FleetViews()
        self._changed: dict[str, None] = {}
        """Incarnations whose view has to be made again, in the order of their changes so that runs repeat."""
        self._by_incarnation: dict[str, dict[str, _Record]] = {}
        """Members by the process that they name; two may name one."""
        self._observed_at = float("-inf")
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
                self._forget(worker_id, record.liveness.status)
        for worker_id, member in wanted.items():
            if worker_id not in self._records:
                _log.info("worker %s at %s was discovered", worker_id, member.address)
                self._records[worker_id] = _Record(member, self._settings)
        self._live_models = frozenset(self._find_live_models())

    def on_status(self, worker_id: str, status: WorkerStatus, now: float) -> bool:
        """A worker reports; whether what placements depend on may have changed, by its version."""
        record = self._records.get(worker_id)
        if record is None:
            return False
        self.version += 1
        last, incarnation = record.liveness.status, status.ref.incarnation
        record.liveness.on_status(status, now)
        self.bookings.on_status(status, now)
        if last is None or last.ref.incarnation != incarnation:
            if last is not None:
                _log.warning("worker %s was replaced by incarnation %s", worker_id, incarnation)
            self._forget(worker_id, last)
            self._by_incarnation.setdefault(incarnation, {})[worker_id] = record
        self._changed[incarnation] = None
        self._note(record, now)
        return last is None or (last.ref.incarnation, last.version) != (incarnation, status.version)

    def on_lost(self, worker_id: str, now: float) -> None:
        """The status stream of a worker broke."""
        record = self._records.get(worker_id)
        if record is not None:
            self.version += 1
            record.liveness.on_lost()
            self._note(record, now)

    def observe(self, now: float) -> None:
        """Time passed: notice workers that fell silent or hang."""
        if now - self._observed_at < OBSERVE_S:
            return
        self._observed_at = now
        for record in self._records.values():
            self._note(record, now)

    def forgive(self, now: float) -> None:
        """This process was held up and read nothing: every worker gets its time again."""
        for record in self._records.values():
            record.liveness.forgive(now)
            self._note(record, now)

    def book(self, booking: Booking) -> None:
        """A placement was made."""
        self.bookings.add(booking)
        self._booked(booking)

    def end(
        self, handoff_id: str, now: float, *, has_finished: bool = False, has_failed: bool = False
    ) -> Booking | None:
        """An attempt ended."""
        booking = self.bookings.end(handoff_id, now, has_finished=has_finished, has_failed=has_failed)
        if booking is not None:
            self._booked(booking)
        return booking

    def expire(self, now: float) -> None:
        """Drop bookings whose lease is over."""
        if self.bookings.expire(now):
            self.version += 1
            self._change(self._by_incarnation)

    def views(self, now: float) -> FleetViews:
        """Every worker that has ever sent a status, live or not."""
        self.observe(now)
        for incarnation in self._changed:
            for record in self._by_incarnation.get(incarnation, {}).values():
                self._views.put(self._view(record))
        self._changed.clear()
        return self._views

    def has_prefill(self, model_digest: str) -> bool:
        """Some prefill worker of the model may be chosen, so that prompts come by hand-off."""
        return self.has_worker(WorkerRole.PREFILL, model_digest)

    def has_worker(self, role: WorkerRole, model_digest: str) -> bool:
        """Some worker of the role and model may be chosen; one that may vanish is none."""
        return (role, model_digest) in self._live_models

    def workers(self, now: float) -> tuple[FleetWorker, ...]:
        """Every member, for people and for the autoscaler; what it shows holds for the next placement."""
        for record in self._records.values():
            self._note(record, now)
        return tuple(self._describe(record, now) for record in self._records.values())

    def addresses(self) -> list[str]:
        """host:port of every member."""
        return [record.member.address for record in self._records.values()]

    def _view(self, record: _Record) -> WorkerView:
        status, ref = record.liveness.status, record.ref()
        assert status is not None
        fresh = self.bookings.fresh(ref.incarnation)
        return WorkerView(
            ref=ref,
            status=status,
            out_reason=record.reason or "",
            moved_at=record.liveness.moved_at,
            fresh=fresh,
            held=self.bookings.held(ref.incarnation),
            fresh_adapters=self.bookings.fresh_adapters(ref.incarnation) - status.resident_adapters
            if fresh.num_requests
            else NO_ADAPTERS,
            num_ended_seqs=self.bookings.num_ended_seqs(ref.incarnation),
            num_routers=num_sharing(status, self.router),
            has_refused=self.bookings.has_refused(ref.incarnation),
        )

    def _booked(self, booking: Booking) -> None:
        self.version += 1
        self._change((booking.decode_incarnation, booking.prefill_incarnation))

    def _change(self, incarnations: Iterable[str]) -> None:
        self._changed.update(dict.fromkeys(incarnations))

    def _describe(self, record: _Record, now: float) -> FleetWorker:
        liveness, ref, reason = record.liveness, record.ref(), record.reason
        text = "" if reason is None else reason.value
        if reason is OutReason.NOT_READY and liveness.status is not None:
            text = f"{reason.value}: {liveness.status.not_ready_reason}"
        return FleetWorker(
            ref=ref,
            status=liveness.status,
            is_live=reason is None,
            out_reason=text,
            age_s=0.0 if liveness.status is None else now - liveness.status_at,
            num_booked=self.bookings.fresh(ref.incarnation).num_requests,
        )

    def _note(self, record: _Record, now: float) -> None:
        reason, last = record.liveness.out_reason(now), record.reason
        if reason is last:
            return
        record.reason = reason
        self.version += 1
        self._changed[record.ref().incarnation] = None
        if reason is None:
            _log.info("worker %s is in", record.member.worker_id)
        elif last is None:
            level = logging.INFO if reason in (OutReason.ASLEEP, OutReason.STANDBY) else logging.WARNING
            _log.log(level, "worker %s is out: %s", record.member.worker_id, reason.value)
            self._on_evicted(record.ref().role, reason)
        if reason is None or last is None:
            self._live_models = frozenset(self._find_live_models())

    def _find_live_models(self) -> Iterator[tuple[WorkerRole, str]]:
        for record in self._records.values():
            status = record.liveness.status
            if record.reason is None and status is not None and not status.is_spot:
                yield status.ref.role, status.identity.model_digest

    def _forget(self, worker_id: str, status: WorkerStatus | None) -> None:
        """A process is gone, unless another member names it too."""
        if status is None:
            return
        incarnation = status.ref.incarnation
        named_by = self._by_incarnation[incarnation]
        del named_by[worker_id]
        self._changed[incarnation] = None
        if not named_by:
            del self._by_incarnation[incarnation]
            self.bookings.forget_worker(incarnation)
            self._views.remove(incarnation)
