"""Verdicts of a content policy as an answer: the same edge and steps as every route, and the screen as its source."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import BadRequest
from stratos.common.ids import new_id
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos_gateway.answering.request import ClientRequest, Prepared
from stratos_gateway.moderation.requests import parse_moderation
from stratos_gateway.tokenization.source import ReadyOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModeration(Prepared):
    """Texts that are judged; ``texts`` of the base is empty, or the policy would refuse what it is asked about."""

    inputs: tuple[str, ...]


class ModerationPreparer:
    """Preparation of the route."""

    prompt_param = "input"

    async def prepare(
        self, body: dict[str, Any], tenant: Tenant, trace: TraceContext, revision: str = ""
    ) -> PreparedModeration:
        """Check the body; raises ``BadRequest``."""
        inputs = parse_moderation(body)
        if not tenant.plan.content_policy:
            text = "the plan of this key has no content policy that could answer"
            raise BadRequest(text, code="unsupported_operation")
        return PreparedModeration(
            model=f"content-policy/{tenant.plan.content_policy}",
            operation="moderation",
            num_tokens=0,
            num_sequences=0,
            texts=(),
            refusal=lambda: None,
            inputs=inputs,
        )


class ModerationSource:
    """Asks the tenant's policy."""

    @asynccontextmanager
    async def open(self, request: ClientRequest[PreparedModeration]) -> AsyncIterator[ReadyOutput]:
        """Verdicts in the order of the inputs; raises ``ContentCheckDown``."""
        prepared, screen = request.prepared, request.screen
        assert screen is not None, "preparation has seen that there is a policy"
        results = [_result(await screen.verdict(text)) for text in prepared.inputs]
        yield ReadyOutput({"id": new_id("modr"), "model": prepared.model, "results": results})


def _result(verdict: Mapping[str, bool]) -> dict[str, Any]:
    return {
        "flagged": any(verdict.values()),
        "categories": verdict,
        "category_scores": {name: float(is_hit) for name, is_hit in verdict.items()},
        "category_applied_input_types": {name: ["text"] for name in verdict},
    }
