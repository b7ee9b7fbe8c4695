"""Roll-outs around a request: how it ended is evidence for or against the revision that it ran on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from stratos_gateway.answering.contract import Step
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.rollouts.evidence import RolloutEvidence


class RolloutStep(Step):
    """Shared by all requests of the process.

    Args:
        evidence: of this gateway.
    """

    def __init__(self, evidence: RolloutEvidence) -> None:
        self._evidence = evidence

    @asynccontextmanager
    async def around(self, request: ClientRequest[Any]) -> AsyncIterator[None]:
        """Count the request at its end; what outer steps refuse, such as a tenant's limits, is not seen here."""
        try:
            yield
        finally:
            self._evidence.note(request)
