"""Answers that are sent at once, of every route: behind the gate of a process that stood still, as streams are."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from stratos.common.errors import StratosError
from stratos_gateway.answering.request import ClientRequest


async def send_whole(request: ClientRequest[Any], response: Response, *, is_billed: bool = False) -> None:
    """Write an answer that is one message; one that is billed already is sent whatever ended its request.

    Raises:
        StratosError: what ended the request while it waited: others have its tenant's slots.
    """
    try:
        await request.until_open()
    except StratosError:
        if not is_billed:
            raise
    request.whole = bytes(response.body)
    await response(request.http.scope, request.http.receive, request.send)
