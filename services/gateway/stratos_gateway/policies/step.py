"""The tenant's content policy around a request: it is looked up, lets the input in, and stands by for the output."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from stratos_gateway.answering.contract import Step
from stratos_gateway.answering.output import ChunkOutput, Chunks
from stratos_gateway.answering.request import ClientRequest, ContentScreen
from stratos_gateway.policies.gate import ContentGate
from stratos_gateway.policies.output import ScreenedOutput
from stratos_gateway.policies.screen import Screen


@dataclass(frozen=True, slots=True)
class RequestScreen(ContentScreen):
    """One request's texts and its tenant's policy."""

    screen: Screen

    async def check_input(self, texts: Sequence[str], param: str) -> None:
        """Refuse what the policy does not let in."""
        await self.screen.check_input(texts, param)

    def shown(self, output: ChunkOutput) -> Chunks:
        """The output as the policy lets it out."""
        return ScreenedOutput(output, self.screen) if self.screen.checks_output else output


class PolicyStep(Step):
    """Finds the policy; a request whose policy is not known is refused before it counts for any limit.

    Args:
        gate: of all tenants.
    """

    def __init__(self, gate: ContentGate) -> None:
        self._gate = gate

    @asynccontextmanager
    async def around(self, request: ClientRequest[Any]) -> AsyncIterator[None]:
        """Give the request its screen; raises ``ContentCheckDown``."""
        screen = await self._gate.screen(request.tenant)
        request.screen = None if screen is None else RequestScreen(screen)
        yield


class InputStep(Step):
    """Checks the input; a request that is refused takes no tokens of its tenant's limits."""

    @asynccontextmanager
    async def around(self, request: ClientRequest[Any]) -> AsyncIterator[None]:
        """Refuse the policy's hits; raises ``ContentRefused`` or ``ContentCheckDown``."""
        if request.screen is not None:
            claimed, request.num_claimed_tokens = request.num_claimed_tokens, 0
            await request.screen.check_input(request.prepared.texts, request.prompt_param)
            request.num_claimed_tokens = claimed
        yield
