"""What a person is told of each route, and which kinds of answers it has; paths and methods are the gateway's own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    summary: str
    needs_key: bool = True
    media: tuple[str, ...] = ("application/json",)
    """Of its answer."""
    statuses: tuple[int, ...] = (200,)
    """Those that are no error."""
    is_probe: bool = False
    """503 is its answer, not an error."""
    form: tuple[str, ...] = ()
    """Required parts of its multipart body."""
    query: tuple[str, ...] = ()
    """Parameters that may be given."""


_STREAMS = ("application/json", "text/event-stream")
OPERATIONS: dict[tuple[str, str], Operation] = {
    ("post", "/v1/chat/completions"): Operation(summary="Answer a chat", media=_STREAMS),
    ("post", "/v1/completions"): Operation(summary="Go on with texts", media=_STREAMS),
    ("post", "/v1/responses"): Operation(summary="Answer a chat, in the form of Responses", media=_STREAMS),
    ("post", "/v1/messages"): Operation(summary="Answer a chat, in the form of Messages", media=_STREAMS),
    ("post", "/v1/messages/count_tokens"): Operation(summary="Count the tokens of a message's prompt"),
    ("post", "/v1/embeddings"): Operation(summary="Embed texts"),
    ("post", "/v1/score"): Operation(summary="Judge pairs of texts"),
    ("post", "/v1/rerank"): Operation(summary="Order documents by a query"),
    ("post", "/v1/moderations"): Operation(summary="Tell what the content policy of the key's plan finds"),
    ("post", "/tokenize"): Operation(summary="Token ids of a text or a chat"),
    ("post", "/detokenize"): Operation(summary="The text of token ids"),
    ("get", "/v1/usage"): Operation(
        summary="Usage and charges of the key's tenant",
        media=("application/json", "text/csv"),
        query=("start", "end", "group_by", "format"),
    ),
    ("get", "/v1/requests/{request_id}/receipt"): Operation(summary="The receipt of a request"),
    ("get", "/v1/responses/{response_id}"): Operation(
        summary="A kept or background response", media=_STREAMS, query=("stream", "starting_after", "include")
    ),
    ("post", "/v1/responses/{response_id}/cancel"): Operation(summary="End a background response"),
    ("delete", "/v1/responses/{response_id}"): Operation(summary="Delete a kept response"),
    ("get", "/v1/responses/{response_id}/input_items"): Operation(
        summary="What was said before a kept response", query=("limit", "order", "after", "include")
    ),
    ("post", "/v1/files"): Operation(summary="Upload a file for a batch", form=("file", "purpose")),
    ("get", "/v1/files"): Operation(summary="Files", query=("limit", "after", "order", "purpose")),
    ("get", "/v1/files/{file_id}"): Operation(summary="A file without its bytes"),
    ("delete", "/v1/files/{file_id}"): Operation(summary="Delete a file"),
    ("get", "/v1/files/{file_id}/content"): Operation(
        summary="The bytes of a file, or a range of them", media=("application/octet-stream",), statuses=(200, 206)
    ),
    ("post", "/v1/batches"): Operation(summary="Begin a batch: compute the requests of a file"),
    ("get", "/v1/batches"): Operation(summary="Batches", query=("limit", "after")),
    ("get", "/v1/batches/{batch_id}"): Operation(summary="A batch as it stands"),
    ("post", "/v1/batches/{batch_id}/cancel"): Operation(summary="End a batch"),
    ("get", "/v1/streams/{stream_id}"): Operation(
        summary="Go on with a recorded stream behind Last-Event-ID", media=_STREAMS, statuses=(200, 204)
    ),
    ("post", "/v1/streams/{stream_id}/cancel"): Operation(summary="End a recorded stream"),
    ("get", "/v1/models"): Operation(summary="Models and adapters of the key"),
    ("get", "/v1/models/{name}"): Operation(summary="One model or adapter"),
    ("get", "/tokenizer_info"): Operation(summary="Configuration of the model's tokenizer"),
    ("get", "/version"): Operation(summary="Version of the gateway", needs_key=False),
    ("get", "/health"): Operation(summary="One token through the whole platform", needs_key=False, is_probe=True),
    ("get", "/ping"): Operation(summary="As /health, without a body", needs_key=False, is_probe=True, media=()),
    ("get", "/livez"): Operation(summary="The process answers", needs_key=False, media=("text/plain",)),
    ("get", "/readyz"): Operation(
        summary="Requests can be served", needs_key=False, is_probe=True, media=("text/plain",)
    ),
    ("get", "/ready"): Operation(summary="As /readyz, with the reason as JSON", needs_key=False, is_probe=True),
    ("get", "/"): Operation(summary="Leads to /docs", needs_key=False, media=(), statuses=(307,)),
    ("get", "/openapi.json"): Operation(summary="This document", needs_key=False),
    ("get", "/docs"): Operation(summary="This document as a page", needs_key=False, media=("text/html",)),
}
