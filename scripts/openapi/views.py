"""JSON schemas of the answers of routes that generate no text, from what their own functions write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import orjson

from scripts.openapi.answers import schema_of
from scripts.openapi.samples import USAGE
from stratos.core.requests.records import PositionLogprobs, TokenLogprob
from stratos.store.sealed.batch_store import BatchHead, StoredBatch
from stratos.store.sealed.file_store import StoredFile
from stratos_gateway.batches.views import batch_object
from stratos_gateway.files.routes import file_object
from stratos_gateway.models.score_head import Pair
from stratos_gateway.openai.chunks import ChoiceChunk, TokenEntry
from stratos_gateway.openai.embedding_requests import embedding_answer
from stratos_gateway.openai.rendering import Answer
from stratos_gateway.scoring.answers import RerankRenderer, ScoreRenderer

_TEXT, _INTEGER, _BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_INTEGERS = {"type": "array", "items": _INTEGER}
_YES, _NO = 1, 2


def view_schemas() -> Mapping[tuple[str, str], dict[str, Any]]:
    """By method and path."""
    file, batch = schema_of(map(file_object, _files())), schema_of(map(batch_object, _batches()))
    return {
        ("post", "/v1/embeddings"): schema_of(_embeddings()),
        ("post", "/v1/score"): schema_of(_scored(ScoreRenderer, flag) for flag in (True, False)),
        ("post", "/v1/rerank"): schema_of(_scored(RerankRenderer, flag) for flag in (True, False)),
        ("post", "/v1/messages/count_tokens"): _object(input_tokens=_INTEGER),
        ("post", "/detokenize"): _object(prompt=_TEXT),
        ("post", "/v1/files"): file,
        ("get", "/v1/files"): _list(file),
        ("get", "/v1/files/{file_id}"): file,
        ("delete", "/v1/files/{file_id}"): _deleted("file"),
        ("post", "/v1/batches"): batch,
        ("get", "/v1/batches"): _list(batch),
        ("get", "/v1/batches/{batch_id}"): batch,
        ("post", "/v1/batches/{batch_id}/cancel"): batch,
        ("delete", "/v1/responses/{response_id}"): _deleted("response"),
        ("get", "/v1/responses/{response_id}/input_items"): _list(_object(id=_TEXT, type=_TEXT)),
        ("post", "/v1/moderations"): _object(id=_TEXT, model=_TEXT, results={"type": "array", "items": _verdict()}),
        ("post", "/tokenize"): _object(
            count=_INTEGER, max_model_len=_INTEGER, tokens=_INTEGERS, token_strs={"type": ["array", "null"]}
        ),
        ("get", "/v1/models"): _object(object={"const": "list"}, data={"type": "array", "items": _model()}),
        ("get", "/v1/models/{name}"): _model(),
        ("get", "/version"): _object(version=_TEXT),
    }


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _verdict() -> dict[str, Any]:
    """Rules are the policy's own."""
    rules = {name: {"type": "object"} for name in ("category_scores", "category_applied_input_types")}
    return _object(flagged=_BOOLEAN, categories={"type": "object", "additionalProperties": _BOOLEAN}, **rules)


def _model() -> dict[str, Any]:
    return _object(id=_TEXT, object={"const": "model"}, created=_INTEGER, owned_by=_TEXT)


def _deleted(kind: str) -> dict[str, Any]:
    return _object(id=_TEXT, object={"const": kind}, deleted={"const": True})


def _list(item: dict[str, Any]) -> dict[str, Any]:
    """A page of a list."""
    fields = {"first_id": _TEXT, "last_id": _TEXT, "has_more": _BOOLEAN}
    return _object(object={"const": "list"}, data={"type": "array", "items": item}, **fields)


def _embeddings() -> list[Any]:
    bodies = (cast("Any", SimpleNamespace(is_base64=flag, model="base")) for flag in (False, True))
    return [orjson.loads(embedding_answer(body, [b"\0\0\0\x3f"], 2)) for body in bodies]


def _scored(kind: type[ScoreRenderer], tells_documents: bool) -> dict[str, Any]:
    pairs = (Pair("What?", "This.", ""), Pair("What?", "That.", ""))
    asked = SimpleNamespace(
        yes_id=_YES, no_id=_NO, is_normalized=True, top_n=2, prompts=pairs, tells_documents=tells_documents
    )
    answer = SimpleNamespace(id="id-1", created=1, model="base")
    logprobs = PositionLogprobs(TokenLogprob(_YES, -0.5, 1), (TokenLogprob(_NO, -1.5, 2),))
    chunks = [ChoiceChunk(index, "", [_YES], [TokenEntry(logprobs, 0)], "stop", is_first=True) for index in range(2)]
    return kind(cast("Answer", answer), cast("Any", asked)).body(chunks, USAGE)


def _files() -> list[StoredFile]:
    return [StoredFile(id="file-1", filename="lines.jsonl", purpose="batch")]


def _batches() -> list[StoredBatch]:
    """One as it begins, and one in every other state, with every time that there is."""
    head = BatchHead(
        input_file_id="file-1", endpoint="/v1/embeddings", window="24h", tenant_name="t", key_id="k"
    )  # fmt: skip
    begun = StoredBatch(
        id="batch-1", head=head, status="validating", num_lines=2, num_slices=1, num_completed=0, num_failed=0,
        created_unix_s=1, begun_unix_s=0, finalizing_unix_s=0, cancelling_unix_s=0, ended_unix_s=0, expires_unix_s=9,
        ends="", output_file_id="", error_file_id="", problem="",
    )  # fmt: skip
    ended = replace(
        begun, head=replace(head, metadata={"job": "nightly"}), begun_unix_s=2, finalizing_unix_s=3,
        cancelling_unix_s=4, ended_unix_s=5, output_file_id="file-2", error_file_id="file-3", problem="a long line",
    )  # fmt: skip
    return [begun, *(replace(ended, status=status) for status in ("completed", "failed", "expired", "cancelled"))]
