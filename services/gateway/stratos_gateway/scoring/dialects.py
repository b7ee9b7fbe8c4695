"""Both routes as dialects: their requests go through the pass and the steps of every generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stratos.common.ids import new_id
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.models.score_head import ScoreHead
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.rendering import Answer, Renderer
from stratos_gateway.openai.requests import GenerationBody
from stratos_gateway.preparation.dialects import Dialect
from stratos_gateway.scoring.answers import RerankRenderer, ScoreRenderer
from stratos_gateway.scoring.requests import ScoreBody, parse_rerank, parse_score

SCORE_PATH, RERANK_PATH = "/v1/score", "/v1/rerank"


def _render(
    kind: type[ScoreRenderer], answer: Answer, tokenizer: Tokenizer, body: GenerationBody, texts: Sequence[str]
) -> Renderer:
    assert isinstance(body, ScoreBody), "this dialect's own"
    return kind(answer, body)


def _named(documents: str, param: str) -> str:
    return documents if param == "prompt" else param


def _for_head(
    parse: Callable[[ScoreHead | None, dict[str, Any], int], ScoreBody], body: dict[str, Any], model: ServedModel
) -> ScoreBody:
    """Parse a body for a model; one without a head refuses it."""
    return parse(model.score_head, body, model.base.vocab_size)


SCORING_DIALECTS = (
    Dialect(
        path=SCORE_PATH,
        route="score",
        operation="score",
        prompt_param="text_2",
        make_id=partial(new_id, "score"),
        continues_prompt=False,
        parse=partial(_for_head, parse_score),
        render=partial(_render, ScoreRenderer),
        name_param=partial(_named, "text_2"),
    ),
    Dialect(
        path=RERANK_PATH,
        route="rerank",
        operation="rerank",
        prompt_param="documents",
        make_id=partial(new_id, "rerank"),
        continues_prompt=False,
        parse=partial(_for_head, parse_rerank),
        render=partial(_render, RerankRenderer),
        name_param=partial(_named, "documents"),
    ),
)
