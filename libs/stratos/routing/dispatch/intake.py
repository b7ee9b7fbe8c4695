"""Intake: a request is refused at once where waiting would not help it, or gets a ticket in the queue."""

from __future__ import annotations

from typing import Literal

from stratos.common.errors import (
    BadRequest,
    ContextLengthExceeded,
    FeatureUnavailable,
    Overloaded,
    StratosError,
    WaitTooLong,
)
from stratos.common.shed_reason import ShedReason
from stratos.core.features import name_features
from stratos.core.placement import PlacementRequest, Work
from stratos.routing.admission import Ask
from stratos.routing.dispatch.memory_pressure import MemoryPressure
from stratos.routing.fleet_state import FleetState
from stratos.routing.picker import missing_features, never_fits
from stratos.routing.queueing.overflow import full_queue, longest_wait_s, may_leave
from stratos.routing.queueing.placement_queue import PlacementQueue
from stratos.routing.queueing.ticket import Ticket

DISPLACED = "displaced from a full queue by a tenant with less in it; try again later"

UNDER_PRESSURE = "the KV pools of this model are nearly full; try again later"


class Intake:
    """The way into the queue.

    Args:
        fleet: workers; what none of them could ever take is refused.
        queue: of the router.
        pressure: of the models' KV pools.
    """

    def __init__(self, fleet: FleetState, queue: PlacementQueue, pressure: MemoryPressure) -> None:
        self._fleet = fleet
        self._queue = queue
        self._pressure = pressure

    def push(self, ask: Ask, now: float) -> tuple[Ticket, list[tuple[Ticket, StratosError]]]:
        """Queue a request.

        Returns:
            Its ticket, and the tickets that had to leave the queue for it, each with its error.

        Raises:
            FeatureUnavailable: no known worker of the model offers what it needs.
            ContextLengthExceeded: no known worker of the model could ever hold it.
            Overloaded: the queue is full, or the KV pools nearly are.
            WaitTooLong: the request may go elsewhere, and would wait longer than it allows, or the queue is full.
        """
        self._refuse_unsupported(ask, now)
        self._refuse_impossible(ask, now)
        try:
            self._refuse_long_wait(ask.request, now)
            self._refuse_under_pressure(ask.request, now)
            ticket, displaced = self._push(ask.request, now)
        except StratosError as error:
            error.queue_samples = self._queue.samples_of_newcomer(ask.request)
            raise
        return ticket, [(victim, self._displaced(victim.request, now)) for victim in displaced]

    def _displaced(self, request: PlacementRequest, now: float) -> StratosError:
        return full_queue(request, self._overloaded(DISPLACED, ShedReason.LOAD_SHED, request, now))

    def _overloaded(self, text: str, reason: ShedReason, request: PlacementRequest, now: float) -> Overloaded:
        return Overloaded(text, after_s=self._queue.wait_s(request, now), reason=reason)

    def _push(self, request: PlacementRequest, now: float) -> tuple[Ticket, list[Ticket]]:
        try:
            is_asleep = not self._fleet.has_worker(request.work.role, request.model_digest)
            return self._queue.push(request, now, is_woken_for=is_asleep)
        except Overloaded as error:
            raise full_queue(request, error) from None

    def _refuse_unsupported(self, ask: Ask, now: float) -> None:
        """No worker of the model, not even one that is out, can do it: waiting would not help, an upgrade would."""
        if lacking := missing_features(self._fleet.views(now), ask):
            raise FeatureUnavailable(f"the platform cannot do this now: {name_features(lacking)}; try again later")

    def _refuse_impossible(self, ask: Ask, now: float) -> None:
        """Alone over the mark on every worker of the model: waiting would not help."""
        if never_fits(self._fleet.views(now), ask):
            raise ContextLengthExceeded(
                f"{ask.request.num_prompt_tokens} prompt tokens and the expected output are more than "
                "admission may fill of any worker's KV pool; shorten the prompt or lower max_tokens",
                param="num_prompt_tokens",
            )

    def _refuse_under_pressure(self, request: PlacementRequest, now: float) -> None:
        if self._pressure.sheds(request, self._fleet.views(now), now):
            raise full_queue(request, self._overloaded(UNDER_PRESSURE, ShedReason.MEMORY_PRESSURE, request, now))

    def _refuse_long_wait(self, request: PlacementRequest, now: float) -> None:
        """A request that may go elsewhere does so at once where it would wait too long."""
        if may_leave(request) and (wait_s := self._queue.wait_s(request, now)) > longest_wait_s(request):
            raise WaitTooLong(f"the expected wait is {wait_s:.1f} s", after_s=wait_s)


def check_request(request: PlacementRequest) -> None:
    """Refuse what a correct gateway never sends.

    Raises:
        BadRequest: names the field.
    """
    required: tuple[Literal["request_id", "model_digest"], ...] = ("request_id", "model_digest")
    for name in required:
        if not getattr(request, name):
            raise BadRequest(f"{name} must be set", param=name)
    if request.num_prompt_tokens < 1:
        raise BadRequest("num_prompt_tokens must be at least 1", param="num_prompt_tokens")
    if request.max_output_tokens_total < 1 and request.work is Work.GENERATION:
        raise BadRequest("max_tokens must be at least 1", param="max_tokens")
