"""Sessions of clients: one request or several turns, each of whose prompts begins with all that was said before."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from stratos.cli.load.workload.arrivals import Arrivals
from stratos.cli.load.workload.lengths import FixedLength, Lengths
from stratos.cli.load.workload.prompts import Segment
from stratos.cli.load.workload.senders import Sender, WeightedModel, drawn_model, drawn_sender


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTurn:
    """One request."""

    segments: tuple[Segment, ...]
    num_output_tokens: int
    think_s: float = 0.0
    """Pause after the answer before it; 0 for a first turn."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all segments."""
        return sum(segment.num_tokens for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSession:
    """Requests of one client, one after the other."""

    number: int
    at_s: float
    """Intended arrival of the first turn after the beginning of the run; 0 in a closed loop."""
    sender: Sender
    model: str
    turns: tuple[PlannedTurn, ...]


ONE = FixedLength(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything about the requests but their times."""

    prompt: Lengths
    """Tokens that a turn adds; a shared prefix comes on top."""
    output: Lengths
    num_prefixes: int = 0
    """Shared prefixes: each session begins with one of them, drawn evenly."""
    prefix_tokens: int = 0
    prefix_seed: str = "0"
    """Apart from that of the sessions, so that a warm-up has the prefixes of its run and none of its prompts."""
    turns: Lengths = ONE
    think_s: float = 1.0
    """Mean of the exponential pauses between the turns of a session."""
    senders: tuple[Sender, ...] = (Sender(),)
    models: tuple[WeightedModel, ...] = (WeightedModel("base"),)


def sessions(workload: Workload, arrivals: Arrivals | None, seed: str) -> Iterator[PlannedSession]:
    """All sessions of a load, without end.

    Args:
        workload: what they are like.
        arrivals: when they come; ``None`` in a closed loop.
        seed: the same one gives the same sessions.
    """
    prompts, outputs, who, pauses = (Random(f"{seed}/{name}") for name in ("prompts", "outputs", "who", "pauses"))
    times = itertools.repeat(0.0) if arrivals is None else arrivals.times(Random(f"{seed}/arrivals"))
    prefixes = [Segment(f"{workload.prefix_seed}/{n}", workload.prefix_tokens) for n in range(workload.num_prefixes)]
    for number, at_s in enumerate(times):
        history = (prompts.choice(prefixes),) if prefixes else ()
        turns = tuple(_turns(workload, history, prompts, outputs, pauses))
        sender, model = drawn_sender(who, workload.senders), drawn_model(who, workload.models)
        yield PlannedSession(number=number, at_s=at_s, sender=sender, model=model, turns=turns)


def _turns(
    workload: Workload, history: tuple[Segment, ...], prompts: Random, outputs: Random, pauses: Random
) -> Iterator[PlannedTurn]:
    for turn in range(workload.turns.draw(prompts)):
        segments = (*history, Segment(prompts.getrandbits(64), workload.prompt.draw(prompts)))
        num_output = workload.output.draw(outputs)
        think_s = pauses.expovariate(1 / workload.think_s) if turn and workload.think_s else 0.0
        yield PlannedTurn(segments=segments, num_output_tokens=num_output, think_s=think_s)
        # What the server answered is not known here: as many tokens stand for it, so a prompt grows as it would.
        history = (*segments, Segment(prompts.getrandbits(64), num_output))


def first_requests(found: Iterable[PlannedSession], num_requests: int) -> Iterator[PlannedSession]:
    """Sessions with so many requests in all; the last one is cut short."""
    for session in found:
        if num_requests <= 0:
            return
        turns = session.turns[:num_requests]
        num_requests -= len(turns)
        yield PlannedSession(
            number=session.number, at_s=session.at_s, sender=session.sender, model=session.model, turns=turns
        )
        if num_requests <= 0:
            return
