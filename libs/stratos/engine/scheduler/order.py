"""Which sequence is served first: the order key of the scheduler, and the quota that keeps ageing fair.

    key = (class minus ageing, deadline, arrival)        smaller: admitted first, served first, preempted last

Ageing lifts a sequence one class at 2.0 s of waiting and at each further 2 s.  Only time in the waiting queue counts,
so the key of a running sequence stands still and victims do not change places while they run; a preempted sequence
goes on waiting with what it had waited before.  A sequence without a deadline is ordered as if it had one
``IMPLIED_DEADLINE_S`` after its arrival: then a later arrival is ordered after it one day, and none starves.

While a higher class is backlogged, aged sequences together get at most one of ten admissions, oldest first.
The order decides nothing about memory and batch slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

from stratos.core.requests.terms import RequestTerms
from stratos.core.rules.ageing import AgedQuota, effective_class
from stratos.engine.sequence import Sequence

IMPLIED_DEADLINE_S = 30.0
"""Equals the router's longest queueing time, so that a request without a deadline is neither favoured nor forgotten."""


class OrderKey(NamedTuple):
    """Compared field by field; smaller is served first."""

    service_class: int
    is_native: bool
    """An aged sequence goes before those whose own class it has reached."""
    due_s: float
    """Deadline; at one moment the order of deadlines is the order of slacks. Of aged sequences: their arrival."""
    arrival_s: float
    """In its own class: at the platform, so that a stream that moved is no newcomer where it goes on."""
    seq_id: int

    @classmethod
    def unaged(cls, terms: RequestTerms, seq_id: int) -> OrderKey:
        """The key in the request's own class."""
        due_s = terms.began_s + IMPLIED_DEADLINE_S if terms.deadline_s is None else terms.deadline_s
        return cls(terms.priority_class, True, due_s, terms.began_s, seq_id)


class ServiceOrder:
    """Order of service under one clock; counts admissions for the quota."""

    def __init__(self, *, ageing_step_s: float, admissions_per_aged: int) -> None:
        self._ageing_step_s = ageing_step_s
        self._quota = AgedQuota(admissions_per_aged)

    @property
    def may_age(self) -> bool:
        """The quota lets a waiting sequence pass a higher class now."""
        return self._quota.is_open

    def key(self, sequence: Sequence, now: float, *, may_age: bool = True) -> OrderKey:
        """The order key at ``now`` (monotonic seconds); ``may_age``: the quota lets waiting sequences rise."""
        terms = sequence.terms
        if may_age and terms.priority_class > 0 and (reached := self._reached(sequence, now)) < terms.priority_class:
            return OrderKey(reached, False, terms.arrival_s, terms.arrival_s, sequence.seq_id)
        if sequence.unaged_key is None:
            sequence.unaged_key = OrderKey.unaged(terms, sequence.seq_id)
        return cast("OrderKey", sequence.unaged_key)

    def admissions(self, waiting: Iterable[Sequence], now: float) -> Iterator[Sequence]:
        """Sequences in the order in which they may be admitted; the caller calls ``count`` for each that it admits.

        The quota is looked at again for every sequence.  The caller stops at the first one that finds no room.
        """
        by_class = sorted(waiting, key=lambda s: self.key(s, now, may_age=False))
        risen = [s for s in by_class if self._reached(s, now) < s.terms.priority_class]
        risen.sort(key=lambda s: s.terms.arrival_s)
        lowest = max((s.terms.priority_class for s in risen), default=0)
        taken: set[int] = set()
        for head in by_class:
            while head.seq_id not in taken:
                # of one class none passes another: all of a crowd would be looked at for each of it
                others = risen if self._quota.is_open and head.terms.priority_class < lowest else ()
                aged = next((s for s in others if s.seq_id not in taken and self._passes(s, head, now)), None)
                chosen = head if aged is None else aged
                taken.add(chosen.seq_id)
                yield chosen

    def count(self, sequence: Sequence, classes: Iterable[int]) -> None:
        """``sequence`` was admitted and ``classes`` go on waiting: it used the quota if it passed a higher one."""
        self._quota.count(is_aged=min(classes, default=sequence.terms.priority_class) < sequence.terms.priority_class)

    def _passes(self, sequence: Sequence, head: Sequence, now: float) -> bool:
        """The aged ``sequence`` may go before ``head``, the first by class."""
        top = head.terms.priority_class
        has_risen = top < sequence.terms.priority_class and self._reached(sequence, now) <= top
        return has_risen and self._quota.is_open

    def _reached(self, sequence: Sequence, now: float) -> int:
        return effective_class(sequence.terms.priority_class, sequence.wait.seconds(now), self._ageing_step_s)
