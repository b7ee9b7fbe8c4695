"""A trace as sessions of a load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from stratos.cli.load.traces.mooncake import BLOCK_TOKENS, TraceExtent, TraceRow, read_rows, trace_extent
from stratos.cli.load.workload.prompts import Segment
from stratos.cli.load.workload.senders import Sender, WeightedModel, drawn_model, drawn_sender
from stratos.cli.load.workload.sessions import PlannedSession, PlannedTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A file and who sends its requests."""

    path: Path
    senders: Sequence[Sender]
    """By name for rows that name a tenant; the others are spread by weight."""
    models: Sequence[WeightedModel]
    """For rows that name none."""
    speed: float = 1.0
    """Above 1 the arrivals come closer together."""


def check_replay(replay: Replay) -> TraceExtent:
    """Read the whole file once, so that a wrong line stops a run before its first request; raises ``BadRequest``."""
    return trace_extent(replay.path, _names(replay))


def replayed(replay: Replay, seed: str) -> Iterator[PlannedSession]:
    """Sessions of one turn each; the prompts of a file are the same in each replay with a seed."""
    who, senders = Random(f"{seed}/who"), {sender.name: sender for sender in replay.senders}
    for number, row in enumerate(read_rows(replay.path, _names(replay))):
        drawn = drawn_sender(who, replay.senders)
        model = drawn_model(who, replay.models)
        turn = PlannedTurn(segments=tuple(_segments(row, number, seed)), num_output_tokens=row.num_output_tokens)
        yield PlannedSession(
            number=number,
            at_s=row.timestamp_ms / 1e3 / replay.speed,
            sender=senders.get(row.tenant, drawn),
            model=row.model or model,
            turns=(turn,),
        )


def _names(replay: Replay) -> set[str] | None:
    """Known tenants; a single sender stands for all tenants of a file."""
    return {sender.name for sender in replay.senders} if len(replay.senders) > 1 else None


def _segments(row: TraceRow, number: int, seed: str) -> Iterator[Segment]:
    """Each block is drawn from its id; what no id names belongs to this request alone."""
    num_left = row.num_prompt_tokens
    for name in row.hash_ids:
        yield Segment(f"{seed}/block/{name}", min(BLOCK_TOKENS, num_left))
        num_left -= BLOCK_TOKENS
    if num_left > 0:
        yield Segment(f"{seed}/row/{number}", num_left)
