"""CORS: browsers ask before a page of another origin may call the API; refusals have OpenAI's shape."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from stratos.common.errors import PermissionDenied
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.http.errors import SHED_HEADER, error_body

_MAX_AGE_S = 600
_EXPOSED = (
    "retry-after", "retry-after-ms", "x-request-id", "request-id", "x-should-retry", "x-stratos-ignored", SHED_HEADER,
    "x-stratos-model", "x-stratos-model-refused", "x-stratos-model-rule",
)  # fmt: skip


class Cors(CORSMiddleware):
    """Around everything that answers, errors included.

    Args:
        app: what answers.
        origins: that are allowed, or "*".
    """

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),  # a key in a header is no credential that a browser adds by itself
            expose_headers=_EXPOSED,
            max_age=_MAX_AGE_S,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """Whether the page may call."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        error = PermissionDenied("this origin, or what it asks for, is not allowed")
        return OrjsonResponse(error_body(error), status_code=error.http_status, headers={"vary": "origin"})
