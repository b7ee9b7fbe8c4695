"""Whether a request may be the cause of workers' deaths: a state machine of one request.

    bystander --- its worker is lost before the request has settled there ---> suspect
    suspect   --- the same once more, placed apart from other suspects ------> convicted
    suspect   --- it settles, or the worker was not dead after all ----------> bystander

A tenant of whom several prompts were convicted lately is a suspect as a whole: its requests begin as suspects, so that
a worker has one of them at most, and the first crash convicts.  A worker that only stood still needs a second one.

A worker that fell silent before it took the request (``recovery``) is no victim of it: something else stopped it.

A request has settled at a worker when the worker has made ``SETTLED_STEPS`` steps after the one of its first token.
One that crashes its worker while its prompt is computed, or in its first steps, therefore costs two workers; one
that has run for longer is as little to blame as its neighbours, however often they move.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.core.placement import WorkerRef

SETTLED_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A worker that was lost while it ran the request."""

    worker: WorkerRef
    is_hung: bool
    """It stood still, and may move again; else it is gone."""
    step: int = -1
    """Its step counter when it was lost."""


class Suspicion:
    """State of one request."""

    __slots__ = ("_begins_as_suspect", "victim")

    def __init__(self, *, begins_as_suspect: bool = False) -> None:
        self._begins_as_suspect = begins_as_suspect
        self.victim: Victim | None = None
        """The loss that made it a suspect."""

    @property
    def is_suspect(self) -> bool:
        return self._begins_as_suspect or self.victim is not None

    def clear(self) -> None:
        """It has settled, or its victim lives."""
        self.victim, self._begins_as_suspect = None, False

    def is_convicted_by(self, victim: Victim) -> bool:
        """A worker was lost before the request had settled there; ``True`` when this is one too many."""
        if self.victim is not None or (self._begins_as_suspect and not victim.is_hung):
            return True
        self.victim = victim
        return False
