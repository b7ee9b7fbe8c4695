"""JSON schemas of bodies, from what the parsers read of examples; what a parser checks by itself has no type here.

A schema is never narrower than its parser: a body that it refuses is refused by the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from scripts.openapi.examples import EXAMPLES
from scripts.openapi.recording import FieldRead, ReadKind, recorded_reads
from stratos.common.errors import BadRequest
from stratos.core.requests.limits import LIMITS, MAX_METADATA_CHARS, MAX_METADATA_KEYS, Limit
from stratos_gateway.answering.chain import FIELD, MAX_MODELS
from stratos_gateway.batches.routes import parse_batch
from stratos_gateway.models.score_head import ScoreHead
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.moderation.requests import parse_moderation
from stratos_gateway.openai.embedding_requests import parse_embedding
from stratos_gateway.preparation.dialects import DIALECTS, MESSAGE, no_template
from stratos_gateway.scoring.dialects import SCORING_DIALECTS
from stratos_gateway.tokenization.requests import parse_detokenize, parse_tokenize

_VOCAB_SIZE = 256
Parser = Callable[[dict[str, Any]], object]


def parsers() -> Mapping[str, Parser]:
    """What checks the bodies of each route, by its path."""
    rows = (*DIALECTS, *SCORING_DIALECTS)
    return {
        **{row.path: partial(_parse_row, row.parse) for row in rows},
        "/v1/messages/count_tokens": partial(_parse_row, MESSAGE.parse),
        "/v1/embeddings": lambda body: parse_embedding(body, _VOCAB_SIZE, None),
        "/v1/moderations": parse_moderation,
        "/v1/batches": parse_batch,
        "/tokenize": lambda body: parse_tokenize(body, "base"),
        "/detokenize": lambda body: parse_detokenize(body, "base", _VOCAB_SIZE),
    }


def _parse_row(parse: Callable[[dict[str, Any], ServedModel], object], body: dict[str, Any]) -> object:
    """Parse for a model of which parsers see no more: its vocabulary, and a head whose prompts are not made here."""
    head = ScoreHead(yes_id=1, no_id=2, template=cast("Any", None))
    return parse(body, cast("Any", SimpleNamespace(base=SimpleNamespace(vocab_size=_VOCAB_SIZE), score_head=head)))


def body_schema(path: str, parse: Parser) -> dict[str, Any]:
    """The schema of a route's bodies."""
    reads: list[FieldRead] = []
    for body in EXAMPLES[path]:
        with recorded_reads() as own:
            parse(body)
        reads += own
    required = required_fields(parse, EXAMPLES[path])
    schema: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": _properties(reads, ""),
        "required": required,
    }
    for row in DIALECTS:
        if row.path == path:
            _add_chain(schema)
        if row.path == path and row.fill is not no_template:
            _add_template(schema, row.prompt_param)
    return schema


def required_fields(parse: Parser, bodies: Sequence[dict[str, Any]]) -> list[str]:
    """Fields that every example has, and without which none of them is taken."""
    common = set(bodies[0]).intersection(*bodies[1:])
    return sorted(name for name in common if all(_needs(parse, body, name) for body in bodies))


def _needs(parse: Parser, body: Mapping[str, Any], name: str) -> bool:
    try:
        parse({other: value for other, value in body.items() if other != name})
    except BadRequest as error:
        return error.param == name
    return False


def _add_chain(schema: dict[str, Any]) -> None:
    """Several models may stand for one; which of the two fields is there, the gateway checks."""
    names = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_MODELS, "uniqueItems": True}
    schema["properties"] = dict(sorted({**schema["properties"], FIELD: names}.items()))
    schema["required"] = [name for name in schema["required"] if name != "model"]


def _add_template(schema: dict[str, Any], prompt_param: str) -> None:
    """A tenant's prompt template may stand for the prompt, or before it."""
    schema["properties"].setdefault("prompt", {"type": ["object", "null"]})
    if prompt_param in schema["required"] and prompt_param != "prompt":
        schema["required"].remove(prompt_param)
        schema["anyOf"] = [{"required": [prompt_param]}, {"required": ["prompt"]}]


def _properties(reads: Sequence[FieldRead], within: str) -> dict[str, Any]:
    """Schemas of the fields of one object; the first read of a field says what it is, unless it ignores it."""
    own = [read for read in reads if read.path.startswith(within)]
    found: dict[str, Any] = {}
    for read in sorted(own, key=lambda read: read.kind is ReadKind.IGNORED):
        name = read.path.removeprefix(within)
        if "." not in name and "[" not in name and name not in found:
            found[name] = _schema(read)
    for name, schema in found.items():
        if not schema and (inner := _properties(reads, f"{within}{name}.")):
            schema["properties"] = inner
    return dict(sorted(found.items()))


def _schema(read: FieldRead) -> dict[str, Any]:
    match read.kind:
        case ReadKind.FLAG:
            return {"type": ["boolean", "null"]}
        case ReadKind.NUMBER:
            return _number(LIMITS[read.row])
        case ReadKind.NEUTRAL:
            return {"enum": [*read.neutral, None]}
        case ReadKind.METADATA:
            texts = {"type": "string", "maxLength": MAX_METADATA_CHARS}
            return {"type": ["object", "null"], "maxProperties": MAX_METADATA_KEYS, "additionalProperties": texts}
        case ReadKind.TEXT:
            return {"type": ["string", "null"]}
        case ReadKind.IGNORED:
            return {"description": "accepted, and without a meaning here"}
    return {}


def _number(limit: Limit) -> dict[str, Any]:
    lowest = "exclusiveMinimum" if limit.excludes_minimum else "minimum"
    kind = "integer" if limit.is_integer else "number"
    return {"type": [kind, "null"], lowest: _plain(limit.minimum), "maximum": _plain(limit.maximum)}


def _plain(bound: float) -> float | int:
    return int(bound) if float(bound).is_integer() else bound
