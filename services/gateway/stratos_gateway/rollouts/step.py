"""Roll-outs around a request: how it ended is evidence for or against the revision that it ran on."""

from __future__ import annotations

from functools import partial
from typing import Any

from stratos_gateway.answering.contract import AtEnd, Step
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.rollouts.evidence import RolloutEvidence


class RolloutStep(Step):
    """Shared by all requests of the process.

    Args:
        evidence: of this gateway.
    """

    def __init__(self, evidence: RolloutEvidence) -> None:
        self._evidence = evidence

    def around(self, request: ClientRequest[Any]) -> AtEnd:
        """Count the request at its end; what outer steps refuse, such as a tenant's limits, is not seen here."""
        return AtEnd(partial(self._evidence.note, request))
