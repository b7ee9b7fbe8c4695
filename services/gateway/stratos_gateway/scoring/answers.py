"""Scores of pairs as answers of /v1/score and /v1/rerank, from log probabilities of the two words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stratos.common.errors import StratosError
from stratos_gateway.models.score_head import Pair
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.rendering import Answer, Renderer
from stratos_gateway.scoring.requests import ScoreBody


def word_logprobs(chunk: ChoiceChunk) -> dict[int, float]:
    """Log probabilities that are known of the tokens at a pair's place, under the raw logits."""
    places = [entry.logprobs for entry in chunk.entries]
    return {token.token_id: token.logprob for place in places for token in (*place.top, place.sampled)}


class ScoreRenderer(Renderer):
    """/v1/score.

    Args:
        answer: shared fields.
        asked: the checked body.
    """

    def __init__(self, answer: Answer, asked: ScoreBody) -> None:
        super().__init__(answer)
        self.asked = asked

    def body(self, chunks: Sequence[ChoiceChunk], usage: Usage) -> dict[str, Any]:
        """The whole answer; each chunk knows the log probabilities of both words."""
        answer = self.answer
        data = [{"index": n, "object": "score", "score": score} for n, score in enumerate(self._scores(chunks))]
        head = {"id": answer.id, "object": "list", "created": answer.created, "model": answer.model}
        return {**head, "data": data, "usage": usage.body()}

    def _scores(self, chunks: Sequence[ChoiceChunk]) -> list[float]:
        """In the order of the pairs."""
        return [self._score(chunk) for chunk in sorted(chunks, key=lambda chunk: chunk.index)]

    def _score(self, chunk: ChoiceChunk) -> float:
        known = word_logprobs(chunk)
        difference = known[self.asked.yes_id] - known[self.asked.no_id]
        if not self.asked.is_normalized:
            return difference
        small = math.exp(-abs(difference))  # at most 1, however large the difference is
        return (1.0 if difference >= 0 else small) / (1.0 + small)

    def stream_part(self, chunks: Sequence[ChoiceChunk]) -> bytes:
        """Nothing: these routes have no streams."""
        return b""

    def stream_end(self, usage: Usage) -> bytes:
        """Nothing, either."""
        return b""

    def stream_failure(self, error: StratosError) -> bytes:
        """Nothing, either: errors have a status."""
        return b""


class RerankRenderer(ScoreRenderer):
    """/v1/rerank: the best documents first, those with equal scores in their order."""

    def body(self, chunks: Sequence[ChoiceChunk], usage: Usage) -> dict[str, Any]:
        """The whole answer."""
        scores = self._scores(chunks)
        ranked = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: self.asked.top_n]
        results = [{"index": n, **self._document(n), "relevance_score": scores[n]} for n in ranked]
        return {"id": self.answer.id, "model": self.answer.model, "usage": usage.body(), "results": results}

    def _document(self, index: int) -> dict[str, Any]:
        pair = self.asked.prompts[index]
        assert isinstance(pair, Pair), "this dialect's only prompt"
        return {"document": {"text": pair.document}} if self.asked.tells_documents else {}
