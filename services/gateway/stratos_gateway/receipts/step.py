"""A receipt for every request, however it ends, also where it was refused."""

from __future__ import annotations

from functools import partial
from typing import Any

from stratos.common.clock import Clock
from stratos.core.ledger.receipt import request_receipt
from stratos_gateway.answering.chain import passes_on
from stratos_gateway.answering.contract import AtEnd, Step
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.receipts.desk import ReceiptDesk
from stratos_gateway.receipts.sections import answer_section, request_section


class ReceiptStep(Step):
    """Shared by all requests of the process.

    Args:
        desk: takes receipts.
        clock: monotonic.
    """

    def __init__(self, desk: ReceiptDesk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock

    def around(self, request: ClientRequest[Any]) -> AtEnd:
        """Gather at the end what was noted on the way."""
        return AtEnd(partial(self._gather, request))

    def _gather(self, request: ClientRequest[Any]) -> None:
        now_s = self._clock.now()
        if passes_on(request):
            return  # the receipt is of the model that is asked last
        if request.output is None and not self._desk.takes_refusal(now_s):
            return
        output = {} if request.output is None else request.output.sections()
        sections = {
            **request.trail,
            **output,
            "request": request_section(request),
            "answer": answer_section(request, now_s),
        }
        self._desk.put(request_receipt(request.tenant.id, request.exchange.request_id, sections))
