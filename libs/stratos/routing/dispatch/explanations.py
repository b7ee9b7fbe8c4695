"""Explanations: what each worker lacked for a request that waited in vain."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

from stratos.common.errors import QueueTimeout
from stratos.routing.admission import Ask
from stratos.routing.filters import Rejection
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import Refusal, choose
from stratos.routing.policy.policies import Policies

MAX_EXPLAINED = 16
"""Kinds of requests that are explained in one turn: each costs a choice."""
COUNTED = {
    Rejection.OUT: "not answering or draining",
    Rejection.MODEL: "of another model",
    Rejection.CLEAR: "left to higher classes",
}
"""Words for people in place of the reason's own."""


class Explanations:
    """Explanations of one turn: requests expire by the thousand, and all of a kind share the text of the first one.

    Args:
        views: every known worker.
        policies: of the pools.
        rng: breaks ties.
    """

    def __init__(self, views: FleetViews, policies: Policies, rng: Random) -> None:
        self._views = views
        self._policies = policies
        self._rng = rng
        self._reasons: dict[Hashable, str] = {}

    def timeout(self, ask: Ask, waited_s: float) -> QueueTimeout:
        """The answer to a request whose time is over."""
        request = ask.request
        terms = (request.model_digest, request.work, request.num_choices, request.terms.adapter.digest)
        kind = (*terms, request.required_features, request.excluded_incarnations, bool(request.refusals), ask.closed)
        if kind not in self._reasons and len(self._reasons) < MAX_EXPLAINED:
            self._reasons[kind] = self._why_not(ask)
        why = self._reasons.get(kind, "its workers were full")
        return QueueTimeout(f"no worker took the request within {waited_s:.1f} s ({why})")

    def _why_not(self, ask: Ask) -> str:
        choice = choose(self._views, ask, self._policies, self._rng)
        why = str(choice) if isinstance(choice, Refusal) else "others were before it"
        for reason, text in COUNTED.items():
            why = why.replace(f"{reason.value}:", f"{text}:")
        return why
