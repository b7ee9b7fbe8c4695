"""Verdicts of a content policy as an answer: the same edge and steps as every route, and the screen as its source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from stratos.common.clock import Clock
from stratos.common.errors import BadRequest, QueueTimeout
from stratos.common.ids import new_id
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.answering.request import ClientRequest, ContentScreen, Prepared
from stratos_gateway.moderation.requests import parse_moderation
from stratos_gateway.tokenization.source import ReadyOutput

_AT_ONCE = 4
"""Texts of one request that are judged at the same time; other requests ask the classifier, too."""
_S_PER_TEXT = 0.25
"""Time for each text: that of a classifier that takes a second. The most texts fit into a client's usual 10 minutes."""


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
    """Asks the tenant's policy; one classifier may be asked for thousands of texts, so it ends as other work does.

    Args:
        admission: ends requests that lose their place.
        clock: of their deadlines.
    """

    def __init__(self, admission: Admission, clock: Clock) -> None:
        self._admission, self._clock = admission, clock

    @asynccontextmanager
    async def open(self, request: ClientRequest[PreparedModeration]) -> AsyncIterator[ReadyOutput]:
        """Verdicts in the order of the inputs.

        Raises:
            ContentCheckDown: there is no verdict.
            BadRequest: some were there in time, and not all: the same texts once more would end like that again.
            QueueTimeout: none was there in time.
        """
        prepared, screen = request.prepared, request.screen
        assert screen is not None, "preparation has seen that there is a policy"
        left_s, results = (
            max(0.0, judged_by_s(request, len(prepared.inputs)) - self._clock.now()),
            list[dict[str, Any]](),
        )
        try:
            async with asyncio.timeout(left_s) as limit:
                await self._admission.run_in(request.place, _judge(screen, prepared.inputs, results))
        except TimeoutError:
            if not limit.expired():
                raise
            if not results:
                raise QueueTimeout(f"there was no verdict within {left_s:g} s") from None
            text = f"{len(results)} of {len(prepared.inputs)} texts were judged within {left_s:g} s; send fewer at once"
            raise BadRequest(text, param="input", code="too_many_texts") from None
        own = request.fixed_id or new_id("modr")
        yield ReadyOutput({"id": own, "model": prepared.model, "results": results})


def judged_by_s(request: ClientRequest[Any], num_texts: int) -> float:
    """When all texts are to be judged, monotonic: the first by the time that any answer begins, more take longer."""
    return min(request.deadline_s + _S_PER_TEXT * (num_texts - 1), request.end_s)


async def _judge(screen: ContentScreen, texts: Sequence[str], results: list[dict[str, Any]]) -> None:
    """Add the results of texts in their order."""
    for begin in range(0, len(texts), _AT_ONCE):
        verdicts = await asyncio.gather(*map(screen.verdict, texts[begin : begin + _AT_ONCE]))
        results += map(_result, verdicts)


def _result(verdict: Mapping[str, bool]) -> dict[str, Any]:
    return {
        "flagged": any(verdict.values()),
        "categories": verdict,
        "category_scores": {name: float(is_hit) for name, is_hit in verdict.items()},
        "category_applied_input_types": {name: ["text"] for name in verdict},
    }
