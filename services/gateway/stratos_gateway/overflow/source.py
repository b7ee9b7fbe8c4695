"""The external endpoint as a source: for requests that would wait too long here, and that may leave the platform."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Protocol

from stratos.common.clock import Clock
from stratos.common.errors import DeadlinePassed, StratosError, WaitTooLong, WorkerLost
from stratos.core.adapter import BASE_MODEL
from stratos.store.models.alias_forms import pinned
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.access.contract import Gate
from stratos_gateway.answering.draft import Draft
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.overflow.bill import ExternalBill
from stratos_gateway.overflow.call import ExternalCall
from stratos_gateway.overflow.client import OverflowClient
from stratos_gateway.overflow.output import ExternalOutput
from stratos_gateway.overflow.request import ExternalRequest, external_request

_log = logging.getLogger(__name__)


class ExternalMeter(Protocol):
    """Bills requests; ``ledger.Meter`` is the one of a gateway."""

    def follow(self, draft_so_far: Callable[[], Draft | None]) -> AbstractContextManager[None]:
        """Keep what a request has taken so far in the ledger, as long as it runs."""
        ...

    def end(self, draft: Draft) -> None:
        """A request has ended."""
        ...


class ExternalSource:
    """Belongs to the event loop.

    Args:
        client: calls the endpoint.
        admission: ends requests that lose their place.
        clock: of the requests' times.
        metrics: counts them.
        meter: bills them; ``None`` where nothing is billed.
        gate: before what the endpoint says; ``None`` is always open.
    """

    def __init__(
        self,
        client: OverflowClient,
        admission: Admission,
        clock: Clock,
        metrics: GatewayMetrics,
        meter: ExternalMeter | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._client = client
        self._meter = meter
        self._gate = gate
        self._admission = admission
        self._clock = clock
        self._metrics = metrics

    def patience(self, request: ClientRequest[PreparedGeneration]) -> float:
        """Seconds after which a request is better answered there; 0 where it cannot be, or there is no room.

        Where another model of its chain is to be asked, it goes to that one.
        """
        is_able = self._client.has_room and not request.yields_after_s and _external_form(request) is not None
        return self._client.config.after_s if is_able else 0.0

    @asynccontextmanager
    async def open(self, request: ClientRequest[PreparedGeneration]) -> AsyncIterator[ExternalOutput | None]:
        """The endpoint's answer; where it fails before the client has got anything, the request waits here.

        So does one that finds no place there: others may have left since it began to wait.
        """
        form, why = _external_form(request), request.declined
        if form is None or not isinstance(why, WaitTooLong) or not self._client.has_room:
            yield None
            return
        output: ExternalOutput | None = None
        try:
            async with self._client.open(form, self._call(request)) as output:
                with self._bounded(request, output), self._followed(output):
                    yield output
        except StratosError as error:
            if request.has_answered:
                raise
            request.output = None  # the client has nothing of it
            self._give_up(output)
            if not isinstance(error, WorkerLost):
                raise
            self._decline(request, error)
        else:
            assert output is not None
            self._metrics.observe_external(output.receipt, is_complete=output.is_complete)
            _log.info("request %s went to the external endpoint: %s", request.exchange.request_id, why.message)
        if output is None:
            yield None

    def _call(self, request: ClientRequest[PreparedGeneration]) -> ExternalCall:
        spec, tokenizer = request.prepared.specs[0], request.prepared.tokenizer
        price = self._client.config.price
        return ExternalCall(
            model=request.prepared.base_model,
            max_tokens=spec.sampling.max_tokens,
            num_prompt_tokens=len(spec.prompt_ids),
            count_tokens=lambda text: len(tokenizer.encode_plain(text)),
            within_s=request.deadline_s - self._clock.now(),
            received_s=request.received_s,
            promised_itl_us=spec.promised_itl_us,
            bill=None if spec.meter is None else ExternalBill(tenant=request.tenant, tag=spec.meter, price=price),
            gate=self._gate,
        )

    @contextmanager
    def _bounded(self, request: ClientRequest[PreparedGeneration], output: ExternalOutput) -> Iterator[None]:
        """End the answer at the request's own end, or with its place."""
        left_s = max(0.0, request.end_s - self._clock.now())
        timer = asyncio.get_running_loop().call_later(left_s, output.fail, DeadlinePassed())
        try:
            with self._admission.ends_by(request.place, output.fail, lambda: output.has_begun):
                yield
        finally:
            timer.cancel()

    def _followed(self, output: ExternalOutput) -> AbstractContextManager[None]:
        return nullcontext() if self._meter is None else self._meter.follow(output.draft_so_far)

    def _give_up(self, output: ExternalOutput | None) -> None:
        draft = None if output is None else output.draft_given_up()
        if draft is not None and self._meter is not None:
            self._meter.end(draft)

    def _decline(self, request: ClientRequest[PreparedGeneration], error: StratosError) -> None:
        self._metrics.overflows.labels("failed").inc()
        _log.warning("request %s waits here: %s", request.exchange.request_id, error.message)
        request.declined = error


def _external_form(request: ClientRequest[PreparedGeneration]) -> ExternalRequest | None:
    """A request as an external endpoint could serve it; ``None`` where it cannot, or the tenant's plan forbids it."""
    [spec, *others] = request.prepared.specs
    is_ours = request.tenant.plan.resident_only or spec.sampling.watermark is not None
    is_ours = is_ours or pinned(request.prepared.model) is not None  # that revision, and no other weights
    if is_ours or request.is_exact or others or spec.terms.adapter != BASE_MODEL:
        return None
    return external_request(request.prepared.body)
