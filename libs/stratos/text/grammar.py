"""Grammars over token ids, by llguidance: from a ``GrammarSpec`` to a matcher that knows the allowed next tokens.

The gateway compiles to refuse what cannot be compiled, a worker compiles to use it; both get the same verdict.
Compiling takes a millisecond, a hostile text more than ``FUEL`` bounds (``grammar_probe``), and gives up the GIL: do it
in a thread.  Even a full batch of the worst masks takes less time than a worker may stand still.  JSON is compact or
pretty-printed; runs of blanks are bounded, so that no output is blanks for ever.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import GrammarKind, GrammarSpec, choices_of

FUEL = LLParserLimits(
    initial_lexer_fuel=500_000,  # about 10 ms
    step_lexer_fuel=50_000,  # about 4 ms for one mask; 15 with the worst texts within the limits of their size
    step_max_items=15_000,  # about 5 ms for one mask of an ambiguous grammar
    max_lexer_states=100_000,  # about 200 MB
    max_grammar_size=200_000,
    verbose_errors=False,
)
JSON_BLANKS = r"[ \n]{0,20}"
MAX_ERROR_CHARS = 200


def make_grammar_tokenizer(definition: str, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The vocabulary as llguidance needs it.

    Args:
        definition: content of ``tokenizer.json``.
        vocab_size: of the model's output; ids without a token are never allowed.
        eos_token_ids: allowed where a grammar may end.
    """
    return LLTokenizer(definition, n_vocab=vocab_size, eos_token=list(eos_token_ids))


def compile_grammar(spec: GrammarSpec, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at the beginning of an output.

    Raises:
        BadRequest: the grammar is malformed, uses what is not supported, or is too complex; ``param`` is "grammar".
    """
    matcher = LLMatcher(tokenizer, _definition(spec), log_level=0, limits=FUEL)
    if matcher.is_error():
        raise BadRequest(f"the grammar cannot be used: {brief_error(matcher)}", param="grammar")
    return matcher


def brief_error(matcher: LLMatcher) -> str:
    """Text of an error on one line."""
    lines = [line.strip() for line in str(matcher.get_error()).splitlines()]
    return " ".join(line for line in lines if line)[:MAX_ERROR_CHARS]


def _definition(spec: GrammarSpec) -> str:
    match spec.kind:
        case GrammarKind.JSON_SCHEMA:
            return _schema_definition(spec.text)
        case GrammarKind.REGEX:
            return str(LLMatcher.grammar_from_regex(spec.text))
        case GrammarKind.CHOICE:
            choices = [json.dumps(choice, ensure_ascii=False) for choice in choices_of(spec)]
            return str(LLMatcher.grammar_from_lark("start: " + " | ".join(choices)))
        case GrammarKind.LARK | GrammarKind.CALLS:
            return str(LLMatcher.grammar_from_lark(spec.text))


def _schema_definition(text: str) -> str:
    try:
        return str(LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": JSON_BLANKS}))
    except ValueError as error:
        raise BadRequest(f"the JSON schema cannot be read: {str(error)[:MAX_ERROR_CHARS]}", param="grammar") from error
