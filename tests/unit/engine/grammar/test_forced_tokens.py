"""Tokens that a grammar forces are learned from one request's masks, and hold for the others, mask by mask."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from stratos.common.clock import SystemClock
from stratos.core.requests.grammar import GrammarKind, GrammarSpec, choice_grammar, schema_grammar
from stratos.engine.grammar import forced_tokens
from stratos.engine.grammar.compiler import GrammarCompiler
from stratos.engine.grammar.forced_tokens import MAX_SEVERAL, SEVERAL, UNKNOWN, ForcedPath, ForcedTokens
from stratos.engine.grammar.masks import MaskFiller
from stratos.engine.grammar.matcher import GrammarMatcher
from tests.support.paths import BASE_MODEL
from tests.support.reference.base_tokenizer import base_tokenizer

VOCAB = 4096
PERSON = {
    "type": "object",
    "properties": {"first_name_of_the_person": {"type": "string"}, "state": {"enum": ["well off", "poor", "größer"]}},
    "required": ["first_name_of_the_person", "state"],
    "additionalProperties": False,
}
CALL = '"<tool_call>\\n{\\"name\\": \\"note\\", \\"arguments\\": "'
GRAMMARS = {
    "schema": schema_grammar(PERSON, "schema"),
    "choice": choice_grammar(["the first of them", "the second of them", 'no "quoted"\n', "größer 😀"], "choice"),
    "regex": GrammarSpec(GrammarKind.REGEX, r"number: [0-9]{3}-of-many-(a|b)"),
    "calls": GrammarSpec(GrammarKind.LARK, f"start: {CALL} /[0-9a-z ]+/ {CALL}"),
}


@cache
def compiler(*, shares_forced: bool) -> GrammarCompiler:
    return GrammarCompiler(BASE_MODEL, VOCAB, (0, 4), 8, shares_forced=shares_forced)


def mask_of(matcher: GrammarMatcher, *, is_parallel: bool = False) -> np.ndarray:
    filler = MaskFiller(VOCAB, is_parallel=is_parallel, clock=SystemClock())
    return filler.start({(1, 0): matcher}).wait()[1, 0].copy()


def allowed(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


@pytest.mark.parametrize("is_parallel", [False, True])
@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_that_are_known_equal_those_that_are_computed(name: str, is_parallel: bool) -> None:
    rng, num_known = random.Random(name), 0
    for _ in range(12):
        knowing = compiler(shares_forced=True).matcher(GRAMMARS[name])
        plain = compiler(shares_forced=False).matcher(GRAMMARS[name])
        for _ in range(60):
            assert knowing.is_over == plain.is_over
            if plain.is_over:
                break
            num_known += knowing.known_token >= 0
            computed = mask_of(plain)
            assert (mask_of(knowing, is_parallel=is_parallel) == computed).all()
            token = rng.choice(allowed(computed))
            if token in (0, 4):
                break
            if rng.random() < 0.3:
                assert [s.compiled.is_stopped() for s in knowing.after([token])] == [
                    s.compiled.is_stopped() for s in plain.after([token])
                ]
            knowing.accept(token)
            plain.accept(token)
    assert num_known > 12


def test_a_second_request_computes_no_mask_of_a_forced_text(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = GrammarCompiler(BASE_MODEL, VOCAB, (0, 4), 8)
    computed: list[GrammarMatcher] = []
    fill = GrammarMatcher.fill_mask
    monkeypatch.setattr(
        GrammarMatcher, "fill_mask", lambda self, *place: (computed.append(self), fill(self, *place))[1]
    )
    counts = []
    for _ in range(2):
        computed.clear()
        matcher = grammars.matcher(GRAMMARS["calls"])
        while len(found := allowed(mask_of(matcher))) == 1:
            matcher.accept(found[0])
        counts.append(len(computed))
    assert counts[0] > 8
    assert counts[1] == 1  # where the text becomes free


def test_what_is_known_to_be_forced_is_drafted_whole() -> None:
    grammars = GrammarCompiler(BASE_MODEL, VOCAB, (0, 4), 8)
    first, learned = grammars.matcher(GRAMMARS["calls"]), list[int]()
    drafts = first.forced()
    while len(found := allowed(mask_of(first))) == 1:
        learned += found
        first.accept(found[0])
    second = grammars.matcher(GRAMMARS["calls"])
    assert second.forced() == learned
    assert learned[: len(drafts)] == drafts
    for token in learned:
        second.accept(token)
    assert second.known_token == SEVERAL
    assert second.forced() == []


def test_a_resumed_choice_learns_nothing() -> None:
    grammars = GrammarCompiler(BASE_MODEL, VOCAB, (0, 4), 8)
    ids = base_tokenizer().encode_plain("number: 1")
    resumed = grammars.matcher(GRAMMARS["regex"], ids)
    assert not resumed.can_learn
    assert resumed.known_token == UNKNOWN
    assert len(allowed(mask_of(resumed))) > 1


def test_a_matcher_in_error_teaches_nothing() -> None:
    grammars = GrammarCompiler(BASE_MODEL, VOCAB, (0, 4), 8)
    broken = grammars.matcher(GRAMMARS["regex"])
    broken.compiled.consume_token(base_tokenizer().encode_plain("x")[0])
    mask_of(broken)
    broken.learn(4)
    assert grammars.matcher(GRAMMARS["regex"]).known_token == UNKNOWN


def test_places_are_bounded_and_free_text_has_none() -> None:
    places = ForcedTokens(max_places=10)
    for number in range(100):
        path: ForcedPath | None = ForcedPath(places)
        for step in range(MAX_SEVERAL + 1):
            assert path is not None
            path.learn(SEVERAL)
            path = path.after(1000 * number + step)
        assert path is None
        assert count(places.first) <= 10


def count(place: forced_tokens.ForcedPlace) -> int:
    return 1 + sum(map(count, place.following.values()))
