"""Paths of the metrics API.

The user is authenticated before anything else, also for unknown paths, and numbers are for those alone that the API
server allows.  The list of metrics is for every user that the API server names: it has decided on that itself, and its
aggregator reads as a user without any group, whom no rule allows anything.  Refused, the aggregator calls the whole
group stale, and no namespace of the cluster can be deleted to its end.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from prometheus_client import Counter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from stratos.common.errors import BadRequest, NotFound, StratosError
from stratos.planning.external_metrics import METRIC_NAMES
from stratos_autoscaler.board import LoadBoard
from stratos_autoscaler.metrics_api import documents
from stratos_autoscaler.metrics_api.access import MetricsAccess, Question
from stratos_autoscaler.metrics_api.front_proxy import FrontProxy, User, user_of
from stratos_autoscaler.metrics_api.selectors import parse_selector
from stratos_autoscaler.metrics_api.tls import CERTIFICATE_KEY

ROOT = f"/apis/{documents.GROUP_VERSION}"
_DISCOVERY: dict[str, Callable[[], dict[str, Any]]] = {
    "/apis": documents.group_list,
    f"/apis/{documents.GROUP}": documents.group,
    ROOT: documents.resource_list,
}


class MetricsApp:
    """ASGI application.

    Args:
        board: has the numbers.
        namespace: of the release, the only one that it has numbers of.
        access: decides who may ask.
        proxy: how the API server shows itself; ``None`` while that is not known.
        asked: counts questions for numbers by outcome.
    """

    def __init__(
        self,
        board: LoadBoard,
        namespace: str,
        access: MetricsAccess,
        proxy: Callable[[], FrontProxy | None],
        asked: Counter,
    ) -> None:
        self._board = board
        self._namespace = namespace
        self._access = access
        self._proxy = proxy
        self._asked = {outcome: asked.labels(outcome) for outcome in ("answered", "refused", "failed")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        proxy = self._proxy()
        if proxy is None:
            return _refuse(HTTPStatus.SERVICE_UNAVAILABLE, "the cluster's front-proxy CA was not read yet")
        headers = [(key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in request.scope["headers"]]
        user = user_of(proxy, request.scope.get(CERTIFICATE_KEY) or {}, headers)
        if user is None:
            return _refuse(HTTPStatus.UNAUTHORIZED, "only the API server may ask, for a user that it names")
        path = request.url.path.rstrip("/")
        if request.method != "GET":
            return _refuse(HTTPStatus.METHOD_NOT_ALLOWED, "numbers are only read")
        if path in _DISCOVERY:
            return JSONResponse(_DISCOVERY[path]())
        question = _question(path)
        if question is None:
            return _refuse(HTTPStatus.NOT_FOUND, "there is no such path")
        response = await self._tell(user, question, request.query_params.get("labelSelector", ""))
        code = response.status_code
        self._asked["answered" if code < 400 else "refused" if code < 500 else "failed"].inc()
        return response

    async def _tell(self, user: User, question: Question, selector: str) -> Response:
        try:
            if not await self._access.may(user, question):
                return _refuse(HTTPStatus.FORBIDDEN, f"{user.name} may not read {question.metric}")
            return JSONResponse(self._values(question, selector))
        except StratosError as error:
            return _refuse(error.http_status, error.message)

    def _values(self, question: Question, selector: str) -> dict[str, Any]:
        if question.namespace != self._namespace:
            raise NotFound(f"this autoscaler has the numbers of namespace {self._namespace} alone")
        if question.metric not in METRIC_NAMES:
            raise NotFound(f"there is no metric {question.metric}; there are {', '.join(METRIC_NAMES)}")
        if len(selector) > 4096:
            raise BadRequest("the label selector is too long", param="labelSelector")
        is_selected = parse_selector(selector)
        numbers = [m for m in self._board.numbers() if m.name == question.metric and is_selected(m.labels)]
        if not numbers:
            raise NotFound(f"{question.metric} has no value now for {selector or 'any labels'}")
        return documents.value_list(numbers, datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def _question(path: str) -> Question | None:
    """Namespace and metric of ``ROOT/namespaces/NAMESPACE/METRIC``; ``None`` for a path that is no metric."""
    parts = path.removeprefix(f"{ROOT}/").split("/") if path.startswith(f"{ROOT}/") else []
    if len(parts) == 3 and parts[0] == "namespaces":
        return Question(parts[1], parts[2])
    return None


def _refuse(code: int, message: str) -> Response:
    return JSONResponse(documents.refusal(int(code), message), status_code=int(code))
