"""Matchers of enforced answers, with the shipped model's tokens."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from llguidance import LLTokenizer

from stratos.core.requests.grammar import calls_grammar
from stratos.core.requests.tools import ToolUse
from stratos.engine.grammar.matcher import GrammarMatcher
from stratos.text.grammar import compile_grammar, make_grammar_tokenizer
from stratos.text.output.call_grammar import call_grammar, enforced_schemas
from stratos.text.output.parser import OutputShape
from stratos.text.output.syntax import CallSyntax
from tests.support.paths import BASE_MODEL
from tests.support.reference.shipped_model import VOCAB_SIZE, shipped_tokenizer

END_ID = 4
NO_SPECIAL: Mapping[str, int] = {}


@cache
def grammar_tokenizer() -> LLTokenizer:
    """The shipped model's vocabulary."""
    return make_grammar_tokenizer((BASE_MODEL / "tokenizer.json").read_text(encoding="utf-8"), VOCAB_SIZE, [END_ID])


def matcher_of(use: ToolUse, shape: OutputShape, special: Mapping[str, int] = NO_SPECIAL) -> GrammarMatcher:
    """A matcher at the beginning of an answer."""
    spec = calls_grammar(call_grammar(use, shape, special), enforced_schemas(use), "tools")
    return GrammarMatcher(compile_grammar(spec, grammar_tokenizer()))


def shape_of(syntax: CallSyntax, use: ToolUse) -> OutputShape:
    """The shape of an output with these tools."""
    schemas = {tool.name: tool.parameters or {} for tool in use.tools}
    return OutputShape(syntax=syntax, frame=syntax.frame, schemas=schemas)


def takes(matcher: GrammarMatcher, text: str) -> bool:
    """The whole text is allowed."""
    return takes_ids(matcher, shipped_tokenizer().encode_plain(text))


def takes_ids(matcher: GrammarMatcher, ids: Sequence[int]) -> bool:
    """All of these tokens are allowed."""
    return bool(matcher.compiled.try_consume_tokens(list(ids)) == len(ids))


def random_output(matcher: GrammarMatcher, seed: int, most: int = 300) -> str | None:
    """Text of random tokens that are allowed, shorter ones first; ``None`` where it does not end."""
    ids = random_ids(matcher, seed, most)
    return shipped_tokenizer().decode(ids[:-1]) if ids[-1:] == [END_ID] else None


def random_ids(matcher: GrammarMatcher, seed: int, most: int, closing: Sequence[int] = ()) -> list[int]:
    """Random tokens that are allowed, and the one that ends them where it comes in time.

    Tokens of ``closing`` come more often than others, so that outputs without a bound end.
    """
    row, rng, ids = np.zeros((VOCAB_SIZE + 31) // 32, dtype=np.int32), random.Random(seed), list[int]()
    while len(ids) < most and ids[-1:] != [END_ID]:
        matcher.fill_mask(row.ctypes.data, row.nbytes)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:VOCAB_SIZE]
        allowed = np.flatnonzero(bits).tolist()
        preferred = [END_ID] if END_ID in allowed else [token for token in closing if token in allowed]
        token = rng.choice(preferred if preferred and rng.random() < 0.5 else allowed)
        if token != END_ID:
            matcher.accept(token)
        ids.append(token)
    return ids
