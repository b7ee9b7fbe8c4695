"""Which workers a request is kept away from: those it had trouble with, and those that a suspect could take along.

A suspect (``PlacementRequest.is_suspect``) may be what killed a worker.  It goes to a worker without another suspect,
so that a second death convicts it alone, and without prefill workers, so that it can take no third one along.  It is
held there until it has settled or ended, for at most ``SuspectConfig.hold_s``; other requests go elsewhere in this
time if there is an elsewhere.

A worker that is excluded by a request is avoided while another one serves the model; one that only stood still is
avoided until it has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stratos.routing.admission import Ask
from stratos.routing.filters import Rejection
from stratos.routing.picker import Choice, Refusal
from stratos.routing.worker_view import WorkerView

Choose = Callable[[Sequence[WorkerView], Ask], Choice | Refusal]


@dataclass(frozen=True, slots=True)
class _Hold:
    incarnation: str
    until: float


class SuspectHolds:
    """Suspects that have neither settled nor ended; each one has a worker to itself.

    Args:
        hold_s: longest life of a hold, for gateways that die.
    """

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._holds: dict[str, _Hold] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def add(self, handoff_id: str, incarnation: str, now: float) -> None:
        """A suspect was placed."""
        self._holds[handoff_id] = _Hold(incarnation, now + self._hold_s)

    def release(self, handoff_id: str) -> None:
        """It has settled, or its attempt ended; other ids are ignored."""
        self._holds.pop(handoff_id, None)

    def expire(self, now: float) -> None:
        """Drop holds that nothing was heard of."""
        for handoff_id in [name for name, hold in self._holds.items() if hold.until <= now]:
            del self._holds[handoff_id]

    def workers(self) -> frozenset[str]:
        """Incarnations that hold a suspect."""
        return frozenset(hold.incarnation for hold in self._holds.values())


def choose_apart(
    views: Sequence[WorkerView], ask: Ask, asked_at: float, holders: frozenset[str], choose: Choose
) -> Choice | Refusal:
    """Choose among the workers that the request is not kept away from.

    Args:
        views: every known worker.
        ask: the request with its admission numbers.
        asked_at: when its call arrived; a worker that moved later has moved again.
        holders: incarnations that hold a suspect.
        choose: the choice among some workers.
    """
    ask = _without_moved(views, ask, asked_at)
    answer = _choose_beside(views, ask, holders, choose)
    if isinstance(answer, Refusal) and answer.rejections[Rejection.EXCLUDED] and not answer.is_blocked:
        return _choose_beside(views, _with(ask, excluded_incarnations=frozenset()), holders, choose)
    return answer


def _choose_beside(views: Sequence[WorkerView], ask: Ask, holders: frozenset[str], choose: Choose) -> Choice | Refusal:
    if not holders and not ask.request.is_suspect:
        return choose(views, ask)
    free = [view for view in views if view.ref.incarnation not in holders]
    answer = choose(free, ask)
    if ask.request.is_suspect:
        return _without_sources(answer) if isinstance(answer, Choice) else answer
    return answer if isinstance(answer, Choice) else choose(views, ask)


def _without_sources(choice: Choice) -> Choice:
    """The decode worker computes the prompt itself."""
    return choice if choice.decode is None else Choice(choice.decode, ())


def _without_moved(views: Sequence[WorkerView], ask: Ask, asked_at: float) -> Ask:
    """Forgive the workers that stood still and have moved since."""
    request = ask.request
    if not request.hung_incarnations:
        return ask
    moved = {
        view.ref.incarnation
        for view in views
        if view.ref.incarnation in request.hung_incarnations and view.moved_at > asked_at
    }
    return _with(ask, excluded_incarnations=request.excluded_incarnations - moved) if moved else ask


def _with(ask: Ask, *, excluded_incarnations: frozenset[str]) -> Ask:
    return replace(ask, request=replace(ask.request, excluded_incarnations=excluded_incarnations))
