"""Bodies of /v1/embeddings -> checked records, and vectors -> the answer in OpenAI's shape."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from stratos.common.errors import BadRequest
from stratos.core.files.embedding_files import EmbeddingConfig
from stratos.core.requests.limits import check_model_name, check_num_inputs, check_token_ids
from stratos_gateway.openai.fields import Fields

_INPUT = "input must be a non-empty string, token ids, or a non-empty list of either"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBody:
    """A checked body of /v1/embeddings; each input is text or token ids."""

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    is_base64: bool
    num_dimensions: int | None
    metadata: Mapping[str, str]
    adds_special: bool = True
    """Texts get the special tokens of the tokenizer."""


def parse_embedding(body: dict[str, Any], vocab_size: int, config: EmbeddingConfig | None) -> EmbeddingBody:
    """Check a body.

    Args:
        body: parsed JSON.
        vocab_size: of the model.
        config: how the model embeds; ``None`` when it does not.

    Raises:
        BadRequest: says which parameter is wrong, and how.
    """
    fields = Fields(body)
    parsed = EmbeddingBody(
        model=check_model_name(fields.take("model")),
        inputs=_inputs(fields.take("input"), vocab_size),
        is_base64=_is_base64(fields.take("encoding_format")),
        num_dimensions=_dimensions(fields.number("dimensions"), config),
        metadata=fields.take_metadata(),
        adds_special=fields.flag("add_special_tokens", default=True),
    )
    fields.ignore_harmless()
    fields.end()
    return parsed


def _inputs(value: Any, vocab_size: int) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(value, str):
        return (_text(value),)
    if not isinstance(value, list) or not value:
        raise BadRequest(_INPUT, param="input")
    if isinstance(value[0], str | list):
        check_num_inputs(len(value))
    if all(isinstance(entry, str) for entry in value):
        return tuple(_text(entry) for entry in value)
    if all(isinstance(entry, list) for entry in value):
        return tuple(_ids(entry, vocab_size) for entry in value)
    return (_ids(value, vocab_size),)


def _text(text: str) -> str:
    if not text:
        raise BadRequest(_INPUT, param="input")
    return text


def _ids(ids: list[Any], vocab_size: int) -> tuple[int, ...]:
    if not ids:
        raise BadRequest(_INPUT, param="input")
    return check_token_ids(ids, vocab_size, "input")


def _is_base64(value: Any) -> bool:
    if value not in (None, "float", "base64"):
        raise BadRequest("encoding_format must be float or base64", param="encoding_format")
    return bool(value == "base64")


def _dimensions(value: float | None, config: EmbeddingConfig | None) -> int | None:
    if value is None or config is None:
        return None
    if not config.allows(int(value)):
        allowed = sorted({*(config.matryoshka or ()), config.size})
        cuts = "any number up to " if config.matryoshka == () else ""
        text = f"dimensions of this model's embeddings may be {cuts}{', '.join(map(str, allowed))}"
        raise BadRequest(text, param="dimensions")
    return int(value)


def embedding_answer(body: EmbeddingBody, vectors: Sequence[bytes], num_tokens: int) -> bytes:
    """The answer as JSON; ``vectors`` are float32, little endian."""
    encode = _as_base64 if body.is_base64 else _as_floats
    data = [
        {"object": "embedding", "index": index, "embedding": encode(values)} for index, values in enumerate(vectors)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return orjson.dumps({"object": "list", "data": data, "model": body.model, "usage": usage})


def _as_base64(values: bytes) -> str:
    return base64.b64encode(values).decode()


def _as_floats(values: bytes) -> list[float]:
    return array("f", values).tolist()
