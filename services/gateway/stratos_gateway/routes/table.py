"""The routing table of the OpenAI API: endpoints that compute, models, usage, probes, the API's document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from stratos.core.tenant import Tenant
from stratos.rpc.serving.probes import ready_document
from stratos_gateway.batches.routes import BatchRoutes
from stratos_gateway.files.routes import FileRoutes
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.models.catalogue import ModelCatalogue
from stratos_gateway.openapi.routes import document_routes
from stratos_gateway.routes.health import DeepHealth, HealthState
from stratos_gateway.routes.receipt import ReceiptRoute
from stratos_gateway.routes.responses import ResponseRoutes
from stratos_gateway.routes.usage import UsageRoute


class AsgiRoute:
    """A method as an ASGI application, which the routing table takes for none.

    Args:
        answer: the method.
    """

    def __init__(self, answer: ASGIApp) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._answer(scope, receive, send)


def build_routes(
    *,
    endpoints: Mapping[str, ASGIApp],
    authenticate: Callable[[Request], Awaitable[Tenant]],
    usage: UsageRoute,
    receipt: ReceiptRoute,
    responses: ResponseRoutes,
    sockets: ASGIApp,
    files: FileRoutes,
    batches: BatchRoutes,
    resume_stream: ASGIApp,
    cancel_stream: Callable[[Request], Awaitable[Response]],
    catalogue: ModelCatalogue,
    health: DeepHealth,
    not_ready_reason: Callable[[], str],
    tokenizer: Callable[[Tenant, str | None], Awaitable[Mapping[str, Any]]],
) -> list[BaseRoute]:
    """The routing table.

    Args:
        endpoints: routes that compute, by path.
        authenticate: whose key a request carries.
        usage: of tenants.
        receipt: of single requests.
        responses: kept ones.
        sockets: WebSockets for responses.
        files: of tenants.
        batches: of tenants.
        resume_stream: goes on with a recorded stream.
        cancel_stream: ends one.
        catalogue: names of models.
        health: the deep probe.
        not_ready_reason: empty where requests can be served.
        tokenizer: configuration of a model's tokenizer, for those with a key.
    """

    async def list_models(request: Request) -> Response:
        tenant = await authenticate(request)
        return OrjsonResponse({"object": "list", "data": await catalogue.list(tenant)})

    async def get_model(request: Request) -> Response:
        tenant = await authenticate(request)
        return OrjsonResponse(await catalogue.get(tenant, request.path_params["name"]))

    async def deep_health(_: Request) -> Response:
        report = await health.report()
        body = {"status": report.state, "reason": report.reason, "duration_s": round(report.duration_s, 4)}
        return OrjsonResponse(body, status_code=503 if report.state is HealthState.BROKEN else 200)

    async def tokenizer_info(request: Request) -> Response:
        tenant = await authenticate(request)
        return OrjsonResponse(await tokenizer(tenant, request.query_params.get("model")))

    async def ping(_: Request) -> Response:
        return Response(status_code=503 if (await health.report()).state is HealthState.BROKEN else 200)

    async def show_version(_: Request) -> Response:
        return OrjsonResponse({"version": version("stratosserve")})

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = not_ready_reason()
        return PlainTextResponse(f"{reason or 'ok'}\n", status_code=503 if reason else 200)

    async def ready(_: Request) -> Response:
        status, body = ready_document(not_ready_reason())
        return OrjsonResponse(body, status_code=status)

    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()),
        Route("/v1/responses", sockets, methods=["GET"], name="sockets"),
        Route("/v1/usage", usage.answer, methods=["GET"]),
        Route("/v1/requests/{request_id}/receipt", receipt.answer, methods=["GET"]),
        Route("/v1/responses/{response_id}", AsgiRoute(responses.show), methods=["GET"]),
        Route("/v1/responses/{response_id}/cancel", responses.cancel, methods=["POST"]),
        Route("/v1/responses/{response_id}", responses.delete, methods=["DELETE"]),
        Route("/v1/responses/{response_id}/input_items", responses.items, methods=["GET"]),
        Route("/v1/files", files.create, methods=["POST"]),
        Route("/v1/files", files.list_files, methods=["GET"]),
        Route("/v1/files/{file_id}", files.show, methods=["GET"]),
        Route("/v1/files/{file_id}", files.delete, methods=["DELETE"]),
        Route("/v1/files/{file_id}/content", files.content, methods=["GET"]),
        Route("/v1/batches", batches.create, methods=["POST"]),
        Route("/v1/batches", batches.list_batches, methods=["GET"]),
        Route("/v1/batches/{batch_id}", batches.show, methods=["GET"]),
        Route("/v1/batches/{batch_id}/cancel", batches.cancel, methods=["POST"]),
        Route("/v1/streams/{stream_id}", resume_stream, methods=["GET"]),
        Route("/v1/streams/{stream_id}/cancel", cancel_stream, methods=["POST"]),
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", get_model, methods=["GET"]),
        Route("/health", deep_health, methods=["GET"]),
        Route("/ping", ping, methods=["GET"]),
        Route("/version", show_version, methods=["GET"]),
        Route("/tokenizer_info", tokenizer_info, methods=["GET"]),
        Route("/livez", livez, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        *document_routes(),
    ]
