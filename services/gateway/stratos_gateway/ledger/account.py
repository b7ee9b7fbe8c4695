"""The account of one request: opened when its prompts begin to run, closed with what is charged of each."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from stratos.common.errors import Retryable, StratosError
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.pricing import TokenCounts
from stratos.core.tenancy.plan import Plan
from stratos_gateway.generation.generation import Generation
from stratos_gateway.ledger.draft import Draft
from stratos_gateway.ledger.meter import Meter


class NoAccount:
    """Of a request that is not billed."""

    def fail(self, error: StratosError) -> None:
        """Nothing is noted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class RequestAccount(NoAccount):
    """Surrounds the work on a request; its exception, or ``fail``, says how the request ended.

    Args:
        meter: of the gateway.
        plan: of the tenant.
        generations: one per prompt; those without a tag are not billed.
        is_stream: the client gets the answer as it comes.
    """

    def __init__(self, meter: Meter, plan: Plan, generations: Sequence[Generation], *, is_stream: bool) -> None:
        self._meter = meter
        self._plan = plan
        self._generations = [generation for generation in generations if generation.spec.meter is not None]
        self._is_stream = is_stream
        self._error: BaseException | None = None

    def fail(self, error: StratosError) -> None:
        """The error was told within the stream."""
        self._error = error

    def __enter__(self) -> Self:
        self._meter.begin(generation.request_id for generation in self._generations)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        error = error or self._error
        for generation in self._generations:
            self._meter.end(self._draft(generation, _outcome_of(error), error))

    def _draft(self, generation: Generation, outcome: RequestOutcome, error: BaseException | None) -> Draft:
        spec, transcript = generation.spec, generation.transcript
        assert spec.meter is not None, "left out above"
        num_output = self._num_charged(generation, outcome)
        counts = TokenCounts()
        if num_output:
            counts = TokenCounts(
                num_prompt=len(spec.prompt_ids), num_cached=transcript.num_cached_tokens, num_output=num_output
            )
        return Draft(
            request_id=generation.request_id,
            tenant=spec.terms.tenant,
            plan=self._plan,
            tag=spec.meter,
            outcome=outcome,
            counts=counts,
            times=transcript.times(spec.terms.arrival_s),
            receipt=transcript.receipt,
            last_attempt=generation.last_submitted,
            is_platform_failure=isinstance(error, StratosError) and _is_platforms(error),
        )

    def _num_charged(self, generation: Generation, outcome: RequestOutcome) -> int:
        transcript = generation.transcript
        if outcome is RequestOutcome.FINISHED:
            return transcript.num_output_tokens
        if self._is_stream:
            return transcript.num_delivered_tokens
        return transcript.num_output_tokens if outcome is RequestOutcome.ABORTED else 0


def _outcome_of(error: BaseException | None) -> RequestOutcome:
    """An exception that is no error of ours is the client's end of the connection, or the end of its request's task."""
    if error is None:
        return RequestOutcome.FINISHED
    return RequestOutcome.FAILED if isinstance(error, StratosError) else RequestOutcome.ABORTED


def _is_platforms(error: StratosError) -> bool:
    return isinstance(error, Retryable) or error.http_status >= 500
