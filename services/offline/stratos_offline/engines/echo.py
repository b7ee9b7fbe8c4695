"""An engine that computes nothing: what is around engines is measured with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from stratos_gateway.batches.calls import LineAnswer
from stratos_gateway.batches.slices import result_line
from stratos_offline.blocks import Row
from stratos_offline.engines.contract import LineEngine, NumberedLine
from stratos_offline.options import EngineAsk


class EchoEngine:
    """Answers with the body.

    Args:
        name: of the batch.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    async def answer(self, lines: Sequence[NumberedLine]) -> list[Row]:
        """At once."""
        return [self._row(number, line) for number, line in lines]

    def _row(self, number: int, line: dict[str, object]) -> Row:
        text = result_line(f"{self._name}-{number}", str(line["custom_id"]), LineAnswer(200, line["body"]))
        return number, True, text


@asynccontextmanager
async def open_echo_engine(ask: EngineAsk, endpoint: str) -> AsyncIterator[LineEngine]:
    """There is nothing to open."""
    yield EchoEngine(ask.identity.name)
