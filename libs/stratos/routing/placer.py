"""Waiting requests meet workers: admission, workers that are kept for others, the choice, reservations.

Synchronous and without a clock; who calls it books what is chosen and wakes the caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random

from stratos.routing.admission import Ask
from stratos.routing.filters import is_candidate
from stratos.routing.full_models import FullModels
from stratos.routing.picker import Choice, choose
from stratos.routing.policy.policies import Policies
from stratos.routing.queueing.class_queue import Ticket, Verdict
from stratos.routing.queueing.reservations import Reservations
from stratos.routing.worker_view import WorkerView


class Placer:
    """Tries requests against the fleet.

    Args:
        reservations: of this router.
        policies: of the pools.
        rng: breaks ties.
    """

    def __init__(self, reservations: Reservations, policies: Policies, rng: Random) -> None:
        self._reservations = reservations
        self._policies = policies
        self._rng = rng
        self._full = FullModels()

    def choose(
        self, ticket: Ticket, ask: Ask, views: Sequence[WorkerView], version: int, *, preferred_prefill: str = ""
    ) -> Choice | Verdict:
        """Where a request may run now; nothing is booked.

        Args:
            ticket: of the request.
            ask: what it may take now.
            views: every known worker.
            version: of ``views``; moves whenever a choice among them could turn out differently.
            preferred_prefill: incarnation that has computed its prompt before.
        """
        ask = dataclasses.replace(ask, closed=self._reservations.closed_to(ticket))
        if (verdict := self._full.verdict(ask, version)) is not None:
            return verdict
        choice = choose(views, ask, self._policies, self._rng, preferred_prefill=preferred_prefill)
        if isinstance(choice, Choice):
            return choice
        self._full.learn(ask, choice, version)
        if choice.is_blocked:
            return self._full.verdict(ask, version) or Verdict.BLOCKED
        return Verdict.INELIGIBLE

    def reserve(self, ticket: Ticket, ask: Ask, views: Sequence[WorkerView]) -> None:
        """Keep room for a blocked request at the worker where it is expected to fit first."""
        self._reservations.reserve(ticket, ask, [view for view in views if is_candidate(view, ask)])
