"""Bodies of /v1/score and /v1/rerank, as vLLM has them -> pairs of texts; every failure is a 400 with ``param``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratos.common.changed import record
from stratos.common.errors import BadRequest
from stratos.core.requests.limits import MAX_PROMPTS, check_model_name
from stratos_gateway.models.score_head import Pair, ScoreHead
from stratos_gateway.openai.fields import Fields, object_fields
from stratos_gateway.openai.requests import GenerationBody, GenerationOptions

NUM_LOOKED_AT = 20
"""Most likely tokens that are told with the better word: the other one is nearly always among them."""
_SIDES = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))


@record(frozen=True, slots=True, kw_only=True)
class ScoreBody(GenerationBody):
    """A checked body of either route; its prompts are pairs."""

    yes_id: int
    no_id: int
    is_normalized: bool
    """Scores are between 0 and 1; else they are differences of logits."""
    top_n: int | None = None
    """Documents that are shown; ``None`` shows all."""
    tells_documents: bool = True


def parse_score(head: ScoreHead | None, body: dict[str, Any], vocab_size: int) -> ScoreBody:
    """Check a body of /v1/score.

    Raises:
        BadRequest: says which parameter is wrong, and how; or the model has no head.
    """
    fields = Fields(body)
    first, second = next((names for names in _SIDES if names[0] in body or names[1] in body), _SIDES[0])
    ones, others = _texts(fields.take(first), first), _texts(fields.take(second), second)
    if len(ones) not in (1, len(others)):
        text = f"{first} must hold one text, or as many as {second}"
        raise BadRequest(text, param=first)
    queries = ones * len(others) if len(ones) == 1 else ones
    return _body(head, fields, list(zip(queries, others, strict=True)))


def parse_rerank(head: ScoreHead | None, body: dict[str, Any], vocab_size: int) -> ScoreBody:
    """Check a body of /v1/rerank; raises like ``parse_score``."""
    fields = Fields(body)
    query, documents = fields.take("query"), _texts(fields.take("documents"), "documents")
    if not isinstance(query, str):
        raise BadRequest("query must be a string", param="query")
    top_n, tells_documents = fields.take("top_n"), fields.flag("return_documents", default=True)
    if top_n is not None and (type(top_n) is not int or not 0 <= top_n <= MAX_PROMPTS):
        raise BadRequest(f"top_n must be 0 to {MAX_PROMPTS}", param="top_n")
    pairs = [(query, document) for document in documents]
    return _body(head, fields, pairs, top_n=top_n or None, tells_documents=tells_documents)


def _body(head: ScoreHead | None, fields: Fields, pairs: Sequence[tuple[str, str]], **more: Any) -> ScoreBody:
    """Fields of both routes, and the end of the body."""
    model, instruction = check_model_name(fields.take("model")), fields.take("instruction")
    if instruction is not None and not isinstance(instruction, str):
        raise BadRequest("instruction must be a string", param="instruction")
    is_normalized, metadata = fields.flag("use_activation", default=True), fields.take_metadata()
    session = fields.take_session()
    fields.ignore_harmless()
    fields.refuse("truncate_prompt_tokens")
    fields.end()
    if head is None:
        raise BadRequest("this model has no head that scores", param="model", code="unsupported_operation")
    options = GenerationOptions(
        model=model,
        stream=False,
        stop=(),
        include_stop=False,
        seed=0,
        max_tokens=1,
        num_logprobs=NUM_LOOKED_AT,
        bad_words=(),
        bad_token_ids=(),
        grammar=None,
        metadata=metadata,
        session=session,
        sampling={"temperature": 0.0, "allowed_token_ids": (head.yes_id, head.no_id)},
    )
    prompts = tuple(Pair(query, document, instruction or "") for query, document in pairs)
    return ScoreBody(
        options=options,
        prompts=prompts,
        yes_id=head.yes_id,
        no_id=head.no_id,
        is_normalized=is_normalized,
        **more,
    )


def _texts(value: Any, param: str) -> tuple[str, ...]:
    """One text or several, each as it is or as the field ``text`` of an object."""
    entries = value if isinstance(value, list) else [value]
    if not 0 < len(entries) <= MAX_PROMPTS:
        raise BadRequest(f"{param} must hold 1 to {MAX_PROMPTS} texts", param=param)
    return tuple(_text(entry, param) for entry in entries)


def _text(value: Any, param: str) -> str:
    if isinstance(value, dict):
        fields = object_fields(value, param)
        value = fields.take("text")
        fields.end()
    if not isinstance(value, str):
        raise BadRequest(f"{param} must be a string or a list of strings", param=param)
    return value
