"""The account of one request: opened when its prompts begin to run, closed with what is charged of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from stratos.common.errors import Retryable, StratosError, WaitTooLong
from stratos.common.ids import new_id
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.pricing import Times, TokenCounts, amount_of
from stratos.core.ledger.usage import MeterTag
from stratos.core.tenancy.plan import Plan
from stratos.core.tenancy.prices import Price
from stratos.core.tenant import Tenant
from stratos_gateway.generation.generation import Generation
from stratos_gateway.ledger.draft import Draft, charged_counts
from stratos_gateway.ledger.meter import Meter
from stratos_gateway.overflow.output import ExternalOutput


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


class _Account(NoAccount):
    """Keeps the error that was told within a stream: its request ends without an exception."""

    _error: BaseException | None = None

    def fail(self, error: StratosError) -> None:
        """The error was told within the stream."""
        self._error = error


class RequestAccount(_Account):
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

    def __enter__(self) -> Self:
        self._meter.begin(generation.request_id for generation in self._generations)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        error = error or self._error
        if isinstance(error, WaitTooLong):
            self._meter.forget(generation.request_id for generation in self._generations)
            return
        for generation in self._generations:
            self._meter.end(self._draft(generation, _outcome_of(error), error))

    def _draft(self, generation: Generation, outcome: RequestOutcome, error: BaseException | None) -> Draft:
        spec, transcript = generation.spec, generation.transcript
        assert spec.meter is not None, "left out above"
        num_output = self._num_charged(generation, outcome)
        return Draft(
            request_id=generation.request_id,
            tenant=spec.terms.tenant,
            plan=self._plan,
            tag=spec.meter,
            outcome=outcome,
            counts=charged_counts(len(spec.prompt_ids), transcript.num_cached_tokens, num_output),
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


class ExternalAccount(_Account):
    """Of a request at the external endpoint; one that is run here after all is not billed there.

    Args:
        meter: of the gateway.
        tenant: whose request it is.
        tag: what it is billed by.
        output: what came.
        price: what the endpoint charges the platform.
        has_answered: whether the client has got anything, which rules out that it runs here.
    """

    def __init__(
        self,
        meter: Meter,
        tenant: Tenant,
        tag: MeterTag,
        output: ExternalOutput,
        price: Price,
        *,
        has_answered: Callable[[], bool],
    ) -> None:
        self._meter = meter
        self._tenant = tenant
        self._tag = tag
        self._output = output
        self._price = price
        self._has_answered = has_answered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StratosError) and not self._has_answered():
            return
        error, output = error or self._error, self._output
        num_cached = min(output.num_cached_tokens, output.num_prompt_tokens)
        outcome, num_prompt, num_output = _outcome_of(error), output.num_prompt_tokens, output.num_output_tokens
        took = TokenCounts(num_prompt=num_prompt, num_cached=num_cached, num_output=num_output)
        self._meter.end(
            Draft(
                request_id=new_id("gen"),
                tenant=self._tenant.name,
                plan=self._tenant.plan,
                tag=self._tag,
                outcome=RequestOutcome.EXTERNAL if outcome is RequestOutcome.FINISHED else outcome,
                counts=charged_counts(num_prompt, num_cached, num_output),
                is_external=True,
                external_cost=amount_of(self._price, took),
                times=Times(),
                receipt=output.receipt,
                is_platform_failure=isinstance(error, StratosError) and _is_platforms(error),
            )
        )


def _outcome_of(error: BaseException | None) -> RequestOutcome:
    """An exception that is no error of ours is the client's end of the connection, or the end of its request's task."""
    if error is None:
        return RequestOutcome.FINISHED
    return RequestOutcome.FAILED if isinstance(error, StratosError) else RequestOutcome.ABORTED


def _is_platforms(error: StratosError) -> bool:
    return isinstance(error, Retryable) or error.http_status >= 500
