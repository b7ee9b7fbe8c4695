"""The router's queues: per model the priority classes with ageing, bounds, time to live.

Life of a ticket: ``push`` (or ``Overloaded``) -> waits -> exactly one of: ``dispatch`` returns it with a result,
``expire`` returns it, ``remove`` takes it out because its caller left, a later ``push`` displaces it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from stratos.common.errors import Overloaded
from stratos.common.shed_reason import ShedReason
from stratos.core.fleet import QueueDepth, ServiceMark
from stratos.core.placement import PlacementRequest, ServiceTag, Work
from stratos.core.requests.limits import NUM_PRIORITY_CLASSES
from stratos.core.rules.ageing import AgedQuota, effective_class
from stratos.routing.queueing.class_queue import ClassQueue, is_too_long
from stratos.routing.queueing.heads import NO_BOUNDS, PromptBounds
from stratos.routing.queueing.overflow import longest_wait_s
from stratos.routing.queueing.positions import PositionLog, position_sample
from stratos.routing.queueing.ticket import Dispatched, Place, PlacementVerdict, Reserve, T, Ticket, never_reserve
from stratos.routing.queueing.wait_estimate import QueuePace
from stratos.routing.settings import QueueConfig

MAX_STALE_EXPIRIES = 256
MAX_AGED = 4
"""Aged requests that are tried in one dispatch."""


class ModelQueue:
    """The classes of one model and kind of work: requests for one kind of worker do not wait for another."""

    def __init__(self, settings: QueueConfig) -> None:
        self._settings = settings
        self.classes = [ClassQueue(settings) for _ in range(NUM_PRIORITY_CLASSES)]
        self._quota = AgedQuota(settings.dispatches_per_aged)
        self._pace = QueuePace()

    def wait_s(self, request: PlacementRequest, now: float) -> float:
        """How long a new request would wait: all of its class and of higher ones go first."""
        place = self.classes.index(self.class_of(request))
        before = [queue for queue in self.classes[: place + 1] if len(queue)]
        oldest_s = max((now - oldest.arrived for queue in before if (oldest := queue.oldest())), default=0.0)
        top = 0 if any(map(len, self.classes[:place])) else place
        return self._pace.wait_s(sum(map(len, before)), oldest_s, now, top)

    def num_before(self, ticket: Ticket) -> int:
        """Requests of its class that came before a waiting one, and all of higher classes."""
        own = self.class_of(ticket.request)
        return own.num_before(ticket) + sum(len(queue) for queue in self.classes[: self.classes.index(own)])

    def num_before_newcomer(self, request: PlacementRequest) -> int:
        """All requests of its class and of higher ones."""
        return sum(len(queue) for queue in self.classes[: self.classes.index(self.class_of(request)) + 1])

    def __len__(self) -> int:
        return sum(len(queue) for queue in self.classes)

    def class_of(self, request: PlacementRequest) -> ClassQueue:
        """The queue of a request; classes below the lowest count as the lowest."""
        return self.classes[min(request.terms.priority_class, len(self.classes) - 1)]

    def begin_turn(self) -> None:
        """The fleet may have changed."""
        for queue in self.classes:
            if len(queue):
                queue.begin_turn()

    def dispatch(self, now: float, place: Place[T], reserve: Reserve, bounds: PromptBounds) -> Dispatched[T] | None:
        """Place one request: an aged one when the quota allows, else by class."""
        found = self._dispatch(now, place, reserve, bounds)
        if found is not None:
            self._pace.note_dispatch(self.classes.index(self.class_of(found.ticket.request)), now)
        return found

    def _dispatch(self, now: float, place: Place[T], reserve: Reserve, bounds: PromptBounds) -> Dispatched[T] | None:
        if self._quota.is_open and (aged := self._dispatch_aged(now, place, bounds)) is not None:
            return aged
        for queue in self.classes:
            found = queue.dispatch(now, place, reserve, bounds) if len(queue) else None
            if isinstance(found, Dispatched):
                self._quota.count(is_aged=False)
                return found
            if found is PlacementVerdict.FULL:
                return None
        return None

    def _dispatch_aged(self, now: float, place: Place[T], bounds: PromptBounds) -> Dispatched[T] | None:
        """Place an aged request.

        One that cannot be placed does not use up the quota, lets younger ones pass, and does not block its class: the
        classes are tried in order afterwards as if it were not there.
        """
        for ticket in self._aged(now):
            result = PlacementVerdict.BLOCKED if is_too_long(ticket, bounds) else place(ticket)
            if not isinstance(result, PlacementVerdict):
                queue = self.class_of(ticket.request)
                queue.remove(ticket)
                queue.charge(ticket)
                self._quota.count(is_aged=True)
                return Dispatched(ticket, result)
            if result is PlacementVerdict.FULL:
                return None
        return None

    def _aged(self, now: float) -> list[Ticket]:
        """Requests that have risen to the highest backlogged class from below, the oldest first; some at most."""
        top = next((index for index, queue in enumerate(self.classes) if len(queue)), len(self.classes))
        step_s, risen = self._settings.ageing_step_s, list[Ticket]()
        for index in range(top + 1, len(self.classes)):
            oldest = self.classes[index].oldest()
            if oldest is not None and effective_class(index, now - oldest.arrived, step_s) <= top:
                leaders = self.classes[index].leaders(MAX_AGED)
                risen += [one for one in leaders if effective_class(index, now - one.arrived, step_s) <= top]
        return sorted(risen, key=lambda ticket: (ticket.arrived, ticket.sequence))[:MAX_AGED]


class PlacementQueue:
    """Everything that waits in one router."""

    def __init__(self, settings: QueueConfig) -> None:
        self._settings = settings
        self._models: dict[tuple[str, Work], ModelQueue] = {}
        self._expiries: list[tuple[float, int, Ticket]] = []
        self._positions = PositionLog()
        self._sequence = itertools.count()
        self._last_placed: ModelQueue | None = None

    def __len__(self) -> int:
        return sum(len(model) for model in self._models.values())

    def push(self, request: PlacementRequest, now: float, *, is_woken_for: bool = False) -> tuple[Ticket, list[Ticket]]:
        """Queue a request.

        Args:
            request: what waits.
            now: monotonic seconds.
            is_woken_for: no worker of its model may be chosen; one is started or woken because of it.

        Returns:
            Its ticket, and the tickets that had to leave for it.

        Raises:
            Overloaded: the queue is full, and its tenant holds its share or more of it.
        """
        ticket = self._ticket(request, now)
        if is_woken_for:  # it may wait so long even where the worker comes early and is full at once
            ticket.expires = max(ticket.expires, ticket.wakes_by)
        model = self._model(_queue_key(request))
        displaced = self._make_room(model.class_of(request), ticket, now)
        model.class_of(request).add(ticket)
        if not request.is_move:
            self._positions.begin(ticket, model.num_before(ticket))
        heapq.heappush(self._expiries, (ticket.expires, ticket.sequence, ticket))
        self._compact()
        return ticket, displaced

    def wait_s(self, request: PlacementRequest, now: float) -> float:
        """Estimate of a new request's wait, in seconds."""
        model = self._models.get(_queue_key(request))
        return 0.0 if model is None else model.wait_s(request, now)

    def remove(self, ticket: Ticket) -> bool:
        """Take out a ticket whose caller left; ``False`` when it does not wait any more."""
        if not ticket.is_waiting:
            return False
        self._models[_queue_key(ticket.request)].class_of(ticket.request).remove(ticket)
        return True

    def expire(
        self, now: float, is_woken_for: Callable[[PlacementRequest], bool] = lambda _: False, most: int | None = None
    ) -> list[Ticket]:
        """Take out the tickets whose time to live, or deadline, is over.

        Args:
            now: monotonic seconds.
            is_woken_for: no worker of a request's model may be chosen; one is started or woken because of it.
            most: tickets that are taken out; the next call goes on with those that are left.
        """
        expired: list[Ticket] = []
        while self._expiries and self._expiries[0][0] <= now and (most is None or len(expired) < most):
            ticket = heapq.heappop(self._expiries)[2]
            if ticket.is_waiting and ticket.wakes_by > now and is_woken_for(ticket.request):
                ticket.expires, ticket.wakes_by = ticket.wakes_by, -math.inf
                heapq.heappush(self._expiries, (ticket.expires, ticket.sequence, ticket))
            elif self.remove(ticket):
                expired.append(ticket)
        return expired

    def clear(self) -> list[Ticket]:
        """Take out everything."""
        tickets = list(self.tickets())
        for ticket in tickets:
            self.remove(ticket)
        return tickets

    def tickets(self) -> Iterator[Ticket]:
        """Every waiting request."""
        for model in self._models.values():
            for queue in model.classes:
                yield from queue.tickets()

    def dispatch(
        self, now: float, place: Place[T], reserve: Reserve = never_reserve, bounds: PromptBounds = NO_BOUNDS
    ) -> Iterator[Dispatched[T]]:
        """Place requests until nothing more can be placed; models take turns.

        Args:
            now: monotonic seconds.
            place: tries one request.
            reserve: keeps room for one that is blocked and has waited long enough.
            bounds: which requests need not be tried.
        """
        models = [model for model in self._models.values() if len(model)]
        if self._last_placed in models:  # a turn that placed as many as it may has left the others behind
            begin = models.index(self._last_placed) + 1
            models = models[begin:] + models[:begin]
        for model in models:
            model.begin_turn()
        while models:
            still = []
            for model in models:
                found = model.dispatch(now, place, reserve, bounds)
                if found is not None:
                    still.append(model)
                    self._last_placed = model
                    yield found
            models = still

    def note_positions(self, now: float) -> None:
        """Note where those stand that have waited for some time."""
        self._positions.sample(now, self._num_before)

    def samples_at_end(self, ticket: Ticket, now: float) -> tuple[int, ...]:
        """Where a request stood that was just refused, to the last; a move stands before all others."""
        if ticket.request.is_move:
            return ()
        last = position_sample(ticket, now, self._num_before(ticket))
        is_sampled = ticket.queue_samples[-2:-1] == last[:1]  # earlier in this turn
        return ticket.queue_samples if is_sampled else ticket.queue_samples + last

    def samples_of_newcomer(self, request: PlacementRequest) -> tuple[int, ...]:
        """Where a request would have stood that finds no place in the queue."""
        model = self._models.get(_queue_key(request))
        num_before = 0 if model is None or request.is_move else model.num_before_newcomer(request)
        return (0, num_before) if num_before else ()

    def _num_before(self, ticket: Ticket) -> int:
        return self._models[_queue_key(ticket.request)].num_before(ticket)

    def charge_output(self, model_digest: str, tenant_tokens: Mapping[str, int]) -> None:
        """Charge tenants for the output that a worker of the model has made for them, whichever router placed it."""
        model = self._models.get((model_digest, Work.GENERATION))
        if model is not None:
            for tenant, num_tokens in tenant_tokens.items():
                for queue in model.classes:
                    queue.settle(tenant, num_tokens * self._settings.output_token_cost)

    def tag(self, ticket: Ticket) -> ServiceTag | None:
        """Tag of a request that is being dispatched, for other routers; ``None`` for embeddings."""
        if ticket.request.work is not Work.GENERATION:
            return None
        model = self._models[_queue_key(ticket.request)]
        place = model.classes.index(queue := model.class_of(ticket.request))
        return ServiceTag(place, *queue.standing(ticket))

    def follow(self, model_digest: str, marks: Sequence[ServiceMark]) -> None:
        """Go on from what tenants of a model got by other routers."""
        with suppress(Overloaded):  # so many models wait here that this one is not queued either
            classes = self._model((model_digest, Work.GENERATION)).classes
            for mark in marks:
                if 0 <= mark.start <= mark.counter < math.inf:
                    queue = classes[min(mark.priority_class, len(classes) - 1)]
                    queue.service.follow(mark.tenant, mark.start, mark.counter)

    def refund(self, request: PlacementRequest) -> None:
        """An attempt that was dispatched made nothing: what its dispatch cost is given back."""
        model = self._models.get(_queue_key(request))
        if model is not None:
            model.class_of(request).settle(request.terms.tenant, -self._cost(request))

    def depths(self, now: float) -> list[QueueDepth]:
        """One entry per (model, work, class) with waiting requests."""
        return [
            QueueDepth(
                model_digest=digest,
                priority_class=index,
                num_requests=len(queue),
                num_tokens=sum(ticket.request.num_prompt_tokens for ticket in queue.tickets()),
                oldest_s=now - oldest.arrived,
                work=work,
            )
            for (digest, work), model in self._models.items()
            for index, queue in enumerate(model.classes)
            if (oldest := queue.oldest()) is not None
        ]

    def _cost(self, request: PlacementRequest) -> float:
        """Its prompt, once: the prompt of a return was paid for by the attempt that emitted tokens."""
        return 0.0 if request.is_resumed else self._settings.prompt_token_cost * request.num_prompt_tokens

    def _ticket(self, request: PlacementRequest, now: float) -> Ticket:
        arrived, terms, settings = now - request.waited_ms / 1000, request.terms, self._settings
        bounds = (terms.deadline_s, terms.end_s, now + longest_wait_s(request))
        latest = min(at for at in bounds if at is not None)
        return Ticket(
            request=request,
            cost=self._cost(request),
            arrived=arrived,
            expires=min(arrived + (settings.recovery_ttl_s if request.is_move else settings.ttl_s), latest),
            wakes_by=min(arrived + settings.wake_timeout_s, latest),
            sequence=next(self._sequence),
        )

    def _model(self, key: tuple[str, Work]) -> ModelQueue:
        """The queues of a model; idle ones make place, so that unknown digests cannot fill the memory."""
        model = self._models.get(key)
        if model is not None:
            return model
        if len(self._models) >= self._settings.max_models:
            idle = next((name for name, queue in self._models.items() if not len(queue)), None)
            if idle is None:
                raise Overloaded("too many models have waiting requests; try again later", reason=ShedReason.QUEUE_FULL)
            del self._models[idle]
        return self._models.setdefault(key, ModelQueue(self._settings))

    def _make_room(self, queue: ClassQueue, ticket: Ticket, now: float) -> list[Ticket]:
        if ticket.request.is_move:
            if queue.num_moves >= self._settings.max_recoveries:
                raise self._full("too many streams wait for recovery; try again later", ticket, now)
            return []
        victims = queue.victims_for(ticket)
        if victims is None:
            raise self._full("the queue of this model is full; try again later", ticket, now)
        for victim in victims:
            queue.remove(victim)
        return victims

    def _full(self, text: str, ticket: Ticket, now: float) -> Overloaded:
        return Overloaded(text, after_s=self.wait_s(ticket.request, now), reason=ShedReason.QUEUE_FULL)

    def _compact(self) -> None:
        """Drop entries of tickets that left, before they outnumber the waiting ones."""
        if len(self._expiries) > 2 * len(self) + MAX_STALE_EXPIRIES:
            self._expiries = [entry for entry in self._expiries if entry[2].is_waiting]
            heapq.heapify(self._expiries)


def _queue_key(request: PlacementRequest) -> tuple[str, Work]:
    return request.model_digest, request.work
