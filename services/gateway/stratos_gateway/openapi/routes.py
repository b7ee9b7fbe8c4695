"""GET /openapi.json, GET /docs, and / that leads there, for everyone: nothing of tenants or of this deployment."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
"""The page loads the document, and nothing from elsewhere."""


def document_routes() -> list[BaseRoute]:
    """The routes, with files that are read once; an agent begins with HEAD of /."""
    folder = files("stratos_gateway.openapi")
    document, page = (folder / "openapi.json").read_bytes(), (folder / "docs.html").read_bytes()

    async def show_document(_: Request) -> Response:
        return Response(document, media_type="application/json")

    async def show_page(_: Request) -> Response:
        return Response(page, media_type="text/html", headers={"content-security-policy": _PAGE_POLICY})

    async def lead_to_page(_: Request) -> Response:
        return RedirectResponse("/docs")

    return [
        Route("/", lead_to_page, methods=["GET"]),
        Route("/openapi.json", show_document, methods=["GET"]),
        Route("/docs", show_page, methods=["GET"]),
    ]
