"""Records of a run: what one request met, and how the client itself did. Times are seconds of the run's clock."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass, field

from stratos.cli.load.workload.sessions import PlannedSession, PlannedTurn


@dataclass(slots=True, kw_only=True)
class TimedAnswer:
    """One exchange with the server, as the client saw it."""

    sent_s: float
    token_times_s: array[float] = field(default_factory=lambda: array("d"))
    """Time of each event that carried output."""
    num_prompt_tokens: int | None = None
    """By the server's count; ``None`` where it tells none."""
    num_output_tokens: int | None = None
    failure: str = ""
    """Status and reason of a refusal, or how the exchange broke off; empty for a whole answer."""
    is_client_fault: bool = False
    """The client had no socket left: it fails, not the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRequest:
    """One request of a run.

    Latency counts from the intended arrival.  A client that is held up by a slow server sends late; counted from the
    sending, the wait of all that should have been sent in between would be lost (coordinated omission).
    """

    session: PlannedSession
    turn: PlannedTurn
    intended_s: float
    answer: TimedAnswer

    @property
    def is_completed(self) -> bool:
        """It has its whole answer."""
        return not self.answer.failure

    @property
    def lag_s(self) -> float:
        """How much later than intended it was sent."""
        return max(0.0, self.answer.sent_s - self.intended_s)

    @property
    def ttft_s(self) -> float:
        """Intended arrival to first token."""
        return self.answer.token_times_s[0] - self.intended_s

    @property
    def e2e_s(self) -> float:
        """Intended arrival to last token."""
        return self.answer.token_times_s[-1] - self.intended_s

    @property
    def gaps_s(self) -> list[float]:
        """Between the events that carried output; an event may hold several tokens."""
        times = self.answer.token_times_s
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first one; ``None`` with a single token."""
        times, count = self.answer.token_times_s, self.num_output_tokens
        return (times[-1] - times[0]) / (count - 1) if count > 1 else None

    @property
    def num_prompt_tokens(self) -> int:
        """By the server's count, else as planned."""
        told = self.answer.num_prompt_tokens
        return self.turn.num_prompt_tokens if told is None else told

    @property
    def num_output_tokens(self) -> int:
        """By the server's count, else its events."""
        told = self.answer.num_output_tokens
        return len(self.answer.token_times_s) if told is None else told


@dataclass(slots=True, kw_only=True)
class ClientHealth:
    """Figures of the client itself."""

    loop_delays_s: array[float] = field(default_factory=lambda: array("d"))
    """How late timers of its event loop fired, taken at even distances: as late it saw tokens."""
    cpu_s: float = 0.0
    """Processor time of its process."""
    duration_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class LoadResult:
    """Everything that a run found."""

    requests: list[MeasuredRequest] = field(default_factory=list)
    health: ClientHealth = field(default_factory=ClientHealth)
    duration_s: float = 0.0
    """Beginning to the end of the last answer."""
