"""Completions that show less than was generated: their prompts alone, or the best of several choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stratos.text.tokenizer import Tokenizer
from stratos_gateway.openai.answers import CompletionRenderer
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.rendering import Answer
from stratos_gateway.openai.requests import BestOf


class EchoRenderer(CompletionRenderer):
    """Prompts with nothing behind them; each ends for its length, as that is what was asked for."""

    def body(self, chunks: Sequence[ChoiceChunk], usage: Usage) -> dict[str, Any]:
        """The whole answer at once."""
        return super().body([_bare(chunk) for chunk in chunks], usage)

    def stream_part(self, chunks: Sequence[ChoiceChunk]) -> bytes:
        """Events for prompts, and ends."""
        return super().stream_part([_bare(chunk) for chunk in chunks])


def _bare(chunk: ChoiceChunk) -> ChoiceChunk:
    reason = None if chunk.finish_reason is None else "length"
    return replace(chunk, text="", token_ids=[], entries=[], finish_reason=reason, stop=None)


class BestRenderer(CompletionRenderer):
    """The best choices of each prompt, the very best first.

    Args:
        answer: shared fields; its number of choices is that of those generated.
        tokenizer: for the texts of tokens in log probabilities.
        echoes: texts of the prompts, where choices begin with them.
        best: how many are shown.
    """

    def __init__(self, answer: Answer, tokenizer: Tokenizer, echoes: Sequence[str], best: BestOf) -> None:
        num_logprobs = answer.num_logprobs if best.tells_logprobs else None
        super().__init__(replace(answer, num_choices=best.num_shown, num_logprobs=num_logprobs), tokenizer, echoes)
        self._num_generated = answer.num_choices

    def body(self, chunks: Sequence[ChoiceChunk], usage: Usage) -> dict[str, Any]:
        """The whole answer at once; usage has all choices, shown or not."""
        shown: list[ChoiceChunk] = []
        num_shown = self.answer.num_choices
        for prompt in range(len(self.answer.prompts)):
            own = [chunk for chunk in chunks if chunk.index // self._num_generated == prompt]
            ranked = sorted(own, key=lambda chunk: (-_mean_logprob(chunk), chunk.index))[:num_shown]
            shown += [replace(chunk, index=prompt * num_shown + rank) for rank, chunk in enumerate(ranked)]
        return super().body(shown, usage)


def _mean_logprob(chunk: ChoiceChunk) -> float:
    values = [entry.logprobs.sampled.logprob for entry in chunk.entries]
    return sum(values) / len(values) if values else float("-inf")
