"""How a decoder judges whether a document answers a query: its prompt, and the two words that it answers with.

    config.json             ``classifier_from_token``: the words for no and yes, as vLLM has the field
    score_template.jinja    the prompt, of messages of the roles ``query`` and ``document``, and ``system`` for an
                            instruction; without the file that of Qwen3 Reranker, where the tokenizer has its tags

The score is the share of "yes" among both: ``sigmoid(logit of yes - logit of no)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.text.chat_template import ChatMessage, ChatTemplate
from stratos.text.tokenizer import Tokenizer

TEMPLATE_NAME = "score_template.jinja"
_WORDS = "classifier_from_token"
_ONE = "messages | selectattr('role', 'eq', '{}') | map(attribute='content') | first"
QWEN3_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {{ '
    + _ONE.format("system")
    + " | default('Given a web search query, retrieve relevant passages that answer the query') }}\n<Query>: {{ "
    + _ONE.format("query")
    + " }}\n<Document>: {{ "
    + _ONE.format("document")
    + " }}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>{{ '\\n\\n' }}"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and a document that is judged by it."""

    query: str
    document: str
    instruction: str = ""
    """Says what makes a document fit; empty leaves it to the template."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of the client."""
        return (self.query, self.document, *filter(None, (self.instruction,)))


@dataclass(frozen=True, slots=True)
class ScoreHead:
    """Belongs to one model."""

    yes_id: int
    no_id: int
    template: ChatTemplate

    def encode(self, pair: Pair) -> list[int]:
        """Ids of a prompt; raises ``BadRequest`` where the template refuses the pair."""
        told = [("system", pair.instruction), ("query", pair.query), ("document", pair.document)]
        return self.template.encode([ChatMessage(role, text) for role, text in told if text or role != "system"])


def read_score_head(folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> ScoreHead | None:
    """The head of a model folder; ``None`` where its configuration names no words.

    Raises:
        InvalidCheckpoint: the words are no single tokens, or the prompt is not known.
    """
    words = config.get(_WORDS)
    if words is None:
        return None
    if not isinstance(words, list) or len(words) != 2 or not all(isinstance(word, str) for word in words):
        raise InvalidCheckpoint(f"{folder}: {_WORDS} must hold the words for no and yes")
    no_ids, yes_ids = (tokenizer.encode_plain(word) for word in words)
    if len(no_ids) != 1 or len(yes_ids) != 1 or no_ids == yes_ids:
        raise InvalidCheckpoint(f"{folder}: each word of {_WORDS} must be one token, and not the same")
    path = folder / TEMPLATE_NAME
    if not path.exists() and "<|im_start|>" not in tokenizer.special_tokens:
        raise InvalidCheckpoint(f"{folder}: {_WORDS} needs {TEMPLATE_NAME}, the prompt of a query and a document")
    source = path.read_text(encoding="utf-8") if path.exists() else QWEN3_TEMPLATE
    return ScoreHead(yes_ids[0], no_ids[0], ChatTemplate(source, tokenizer))
