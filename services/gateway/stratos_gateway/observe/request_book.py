"""Counts every request at its end, and writes its line into the access log."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from stratos.common.changed import record
from stratos.common.clock import Clock
from stratos.common.errors import ConcurrencyLimited, InsufficientQuota, RateLimited, RequestOverRate
from stratos_gateway.http.exchange import CLIENT_LEFT, RequestFacts
from stratos_gateway.metrics import AnswerOutcome, GatewayMetrics

_log = logging.getLogger("stratos.access")
LIMIT_CODES = frozenset(error.code for error in (RateLimited, ConcurrencyLimited, RequestOverRate, InsufficientQuota))
"""A tenant's own limits: what they refuse is no fault of the platform, and its tenant will ask why."""


@record(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """One exchange of HTTP, after its last byte."""

    request_id: str
    client: str
    method: str
    route: str
    """Template of its path; "none" where no route has it."""
    status: int
    """499 where the client left."""
    started_s: float
    """Monotonic."""
    is_our_fault: bool = False
    """It ended with an error of 5xx, whatever the status says."""


class RequestBook:
    """Belongs to the event loop.

    Args:
        metrics: of the gateway.
        clock: the one that ``started_s`` is of.
        logs_access: write one line per request.
    """

    def __init__(self, metrics: GatewayMetrics, clock: Clock, *, logs_access: bool = True) -> None:
        self.clock = clock
        self._metrics = metrics
        self._logs_access = logs_access

    def end(self, request: EndedRequest, facts: RequestFacts) -> None:
        """Note a request; what no tenant asked for is counted by route and status alone."""
        duration_s = self.clock.now() - request.started_s
        self._metrics.answered(request.route, str(request.status)).inc()
        if facts.shed_reason:
            self._metrics.shed.labels(facts.shed_reason).inc()
        outcome = _outcome(request, facts)
        if facts.is_inference:
            model = facts.base_model or self._metrics.model
            meters = self._metrics.running(facts.tenant, facts.priority_class, model)
            meters.duration.observe(duration_s)
            self._metrics.ended(model, str(facts.priority_class), outcome).inc()
            if facts.error in LIMIT_CODES and facts.tenant:
                self._metrics.limited.labels(self._metrics.tenants.label_of(facts.tenant), facts.error).inc()
        is_probe = request.method == "GET" and not facts.tenant and request.status < HTTPStatus.BAD_REQUEST
        if self._logs_access and not is_probe and _log.isEnabledFor(logging.INFO):
            _write(request, facts, outcome, duration_s)


def _outcome(request: EndedRequest, facts: RequestFacts) -> AnswerOutcome:
    if request.status == CLIENT_LEFT:
        return AnswerOutcome.LEFT
    if request.is_our_fault or request.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return AnswerOutcome.FAILED
    return AnswerOutcome.REFUSED if facts.error else AnswerOutcome.FINISHED


def _write(request: EndedRequest, facts: RequestFacts, outcome: AnswerOutcome, duration_s: float) -> None:
    """One line, for people and with members; nothing that a client wrote but its request id and its model's name."""
    members = {
        "request_id": request.request_id,
        "client": request.client,
        "method": request.method,
        "route": request.route,
        "status": request.status,
        "outcome": outcome.value,
        "error": facts.error,
        "shed_reason": facts.shed_reason,
        "tenant": facts.tenant,
        "key_id": facts.key_id,
        "plan": facts.plan,
        "class": facts.priority_class,
        "model": facts.model,
        "prompt_tokens": facts.num_prompt_tokens,
        "cached_tokens": facts.num_cached_tokens,
        "output_tokens": facts.num_output_tokens,
        "ttft_ms": _ms(facts.ttft_us),
        "itl_ms": _ms(facts.itl_us),
        "duration_ms": round(duration_s * 1e3, 1),
    }
    owner = f" for {facts.tenant}" if facts.tenant else ""
    answer = f"{request.method} {request.route} {request.status}{owner}: {outcome}"
    counts = f"{facts.num_prompt_tokens} + {facts.num_output_tokens} tokens in {duration_s * 1e3:.0f} ms"
    _log.handle(_AccessLine(f"{answer}, {counts}, {request.request_id}", members))


class _AccessLine(logging.LogRecord):
    """A line of the access log: what ``Logger.info`` makes of it, without a look at where the call came from."""

    def __init__(self, text: str, members: Mapping[str, Any]) -> None:
        created = time.time()
        times = {"created": created, "msecs": int(created * 1000) % 1000 + 0.0}
        self.__dict__ = {**_BLANK, **members, "msg": text, **times}


_BLANK = vars(logging.LogRecord(_log.name, logging.INFO, "", 0, "", (), None))


def _ms(us: int | None) -> float | None:
    return None if us is None else round(us / 1e3, 2)
