"""Structured output through the whole engine core over the shipped small model."""

from __future__ import annotations

import functools
import itertools
import json
import re
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratos.common.clock import SystemClock
from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import ANY_OBJECT, GrammarKind, GrammarSpec, choice_grammar, schema_grammar
from stratos.core.requests.records import FinishReason
from stratos.engine.core import EngineCore
from stratos.engine.grammar import masks, matcher
from stratos.engine.grammar.compiler import GrammarCompiler
from stratos.engine.grammar.matcher import MAX_SLOW_TOKENS, GrammarMatcher
from tests.support.examples import examples
from tests.support.paths import BASE_MODEL
from tests.support.reference.base_tokenizer import base_tokenizer
from tests.support.worlds.core_driver import make_core, make_request, run

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMA = schema_grammar(PERSON, "schema")
REGEX = GrammarSpec(GrammarKind.REGEX, r"[0-9]{3}-[a-f]{2,4}")
CHOICE = choice_grammar(["yes", 'no "quoted"\n', "größer 😀"], "choice")
LARK = GrammarSpec(GrammarKind.LARK, 'start: item ("," item)*\nitem: /[a-z]{1,5}/ | "(" start ")"')


@functools.cache
def prompt() -> list[int]:
    return base_tokenizer().encode_plain("def value(name):\n    return ")


@cache
def core() -> EngineCore:
    return make_core(BASE_MODEL, kv_pool_bytes=8 << 20, max_num_batched_tokens=256)


def generate(grammar: GrammarSpec, engine: EngineCore | None = None, **fields: Any) -> tuple[str, FinishReason | None]:
    request = make_request(prompt(), **{"grammar": grammar, "max_tokens": 120, **fields})
    outcome = run(engine or core(), request).choices["r", 0]
    ids = outcome.ids[:-1] if outcome.reason is FinishReason.STOP else outcome.ids
    return base_tokenizer().decode(ids), outcome.reason


@pytest.mark.parametrize("seed", range(4))
def test_each_kind_of_grammar_is_obeyed(seed: int) -> None:
    params: dict[str, Any] = {"seed": seed, "temperature": 1.3}
    text, reason = generate(SCHEMA, **params)
    jsonschema.validate(json.loads(text), PERSON)
    assert reason is FinishReason.GRAMMAR
    text, _ = generate(REGEX, **params)
    assert re.fullmatch(REGEX.text, text)
    text, reason = generate(CHOICE, **params)
    assert text in ("yes", 'no "quoted"\n', "größer 😀")
    assert reason is FinishReason.GRAMMAR
    text, reason = generate(LARK, **params)
    if reason is FinishReason.STOP:
        assert re.fullmatch(r"[a-z(),]+", text)
        assert text.count("(") == text.count(")")


def test_the_end_token_is_allowed_only_where_the_grammar_may_end() -> None:
    pushed = {"logit_bias": {0: 100.0, 4: 100.0}, "temperature": 0.0}
    text, reason = generate(GrammarSpec(GrammarKind.REGEX, "[a-z]{4,}"), **pushed)
    assert (len(text) >= 4, reason) == (True, FinishReason.STOP)
    text, reason = generate(SCHEMA, **pushed)
    jsonschema.validate(json.loads(text), PERSON)


def test_max_tokens_cuts_a_grammar_off() -> None:
    text, reason = generate(SCHEMA, max_tokens=4)
    assert reason is FinishReason.LENGTH
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_a_grammar_ends_the_choice_whatever_min_tokens_and_ignore_eos_say() -> None:
    for more in ({"min_tokens": 50}, {"ignore_eos": True}, {"min_tokens": 50, "stop_token_ids": (7,)}):
        text, _ = generate(REGEX, temperature=0.0, **more)
        assert re.fullmatch(REGEX.text, text), more
    optional = GrammarSpec(GrammarKind.REGEX, "x(yz)?")
    pushed = {"logit_bias": {4: 100.0}, "temperature": 0.0}
    assert generate(optional, **pushed)[0] == "x"
    assert generate(optional, min_tokens=30, **pushed)[0] == "xyz"  # the end is banned as long as there is more to say


def test_choices_penalties_and_logprobs_go_with_a_grammar() -> None:
    request = make_request(
        prompt(), n=3, grammar=SCHEMA, max_tokens=120, temperature=1.2, repetition_penalty=1.2, presence_penalty=0.5,
        frequency_penalty=0.1, num_logprobs=2, top_p=0.95,
    )  # fmt: skip
    outcomes = run(core(), request).choices
    texts = [base_tokenizer().decode(outcomes["r", index].ids) for index in range(3)]
    for index, text in enumerate(texts):
        jsonschema.validate(json.loads(text), PERSON)
        assert len(outcomes["r", index].logprobs) == len(outcomes["r", index].ids)
    assert len(set(texts)) == 3


def requests_of_all_kinds() -> list[Any]:
    grammars = [SCHEMA, REGEX, CHOICE, LARK, ANY_OBJECT, None]
    return [
        make_request(prompt(), f"r{i}", seed=i, n=2, grammar=grammar, max_tokens=30, temperature=1.1)
        for i, grammar in enumerate(grammars)
    ]


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], list[int]]:
    together: dict[tuple[str, int], list[int]] = {}
    for request in requests_of_all_kinds():
        together.update({key: outcome.ids for key, outcome in run(core(), request).choices.items()})
    return together


@pytest.mark.parametrize(("is_parallel", "is_shared"), [(True, True), (False, True), (False, False)])
def test_a_batch_changes_nothing(alone: dict[Any, list[int]], is_parallel: bool, is_shared: bool) -> None:
    switches = {"parallel_grammar_masks": is_parallel, "shared_forced_tokens": is_shared}
    batch = make_core(BASE_MODEL, kv_pool_bytes=8 << 20, **switches)
    for _ in range(2):
        outcomes = run(batch, *requests_of_all_kinds())
        assert not outcomes.errors
        assert {key: outcome.ids for key, outcome in outcomes.choices.items()} == alone


def test_preemption_happens_and_keeps_the_grammar(alone: dict[Any, list[int]]) -> None:
    token_bytes = core().info.geometry.token_bytes
    small = make_core(BASE_MODEL, kv_pool_bytes=20 * 4 * token_bytes, kv_watermark=1.0, default_output_tokens=1)
    outcomes = run(small, *requests_of_all_kinds())
    assert small.status().num_preemptions > 3
    assert {key: outcome.ids for key, outcome in outcomes.choices.items()} == alone


@pytest.mark.parametrize("name", ["r0", "r1", "r2", "r3", "r4"])
def test_a_resumed_choice_goes_on_inside_its_grammar(alone: dict[Any, list[int]], name: str) -> None:
    whole, request = alone[name, 0], requests_of_all_kinds()[int(name[1])]
    for cut in {min(1, len(whole) - 1), len(whole) // 2, len(whole) - 1} - {0}:
        fields = {"grammar": request.sampling.grammar, "max_tokens": 30, "temperature": 1.1}
        fresh = make_core(BASE_MODEL, kv_pool_bytes=2 << 20)
        resumed = run(fresh, make_request(prompt(), seed=int(name[1]), emitted=whole[:cut], **fields))
        assert resumed.choices["r", 0].ids == whole[cut:]


def test_a_resume_behind_the_last_token_only_ends() -> None:
    ids = base_tokenizer().encode_plain("123-abcd")
    resumed = run(core(), make_request(prompt(), emitted=ids, grammar=REGEX, max_tokens=50))
    assert resumed.choices["r", 0].reason is FinishReason.STOP
    assert len(resumed.choices["r", 0].ids) == 1


def test_what_cannot_be_compiled_or_was_not_allowed_is_refused() -> None:
    bad = {
        "regex": GrammarSpec(GrammarKind.REGEX, "(["),
        "look-ahead": GrammarSpec(GrammarKind.REGEX, "(?=a)b"),
        "lark": GrammarSpec(GrammarKind.LARK, 'start: "a" missing'),
        "type": schema_grammar({"type": "frob"}, "s"),
        "remote": schema_grammar({"$ref": "http://example.com/schema"}, "s"),
        "keyword": schema_grammar({"not": {"type": "string"}}, "s"),
        "empty": schema_grammar({"allOf": [{"type": "string"}, {"type": "integer"}]}, "s"),
        "deep": GrammarSpec(GrammarKind.LARK, "start: " + "(" * 2000 + '"a"' + ")" * 2000),
    }
    for name, grammar in bad.items():
        with pytest.raises(BadRequest) as caught:
            core().prepare_grammar(grammar)
        assert caught.value.param == "grammar", name
        assert "\n" not in caught.value.message
        with pytest.raises(BadRequest):
            core().add(make_request(prompt(), name, grammar=grammar))
    with pytest.raises(BadRequest):
        core().add(make_request(prompt(), "r", grammar=REGEX, emitted=base_tokenizer().encode_plain("abc")))
    assert not core().has_work


def test_a_grammar_that_explodes_ends_its_request_alone() -> None:
    nested = GrammarSpec(GrammarKind.REGEX, "((a{1,100}){1,100}){1,100}")
    exploding = make_request(prompt(), "bad", grammar=nested, max_tokens=200, logit_bias={0: -100.0, 4: -100.0})
    outcomes = run(core(), exploding, make_request(prompt(), "good", grammar=REGEX, max_tokens=50))
    assert isinstance(outcomes.errors["bad"], BadRequest)
    assert "too many" in outcomes.errors["bad"].message
    assert re.fullmatch(REGEX.text, base_tokenizer().decode(outcomes.choices["good", 0].ids).removesuffix("<|end|>"))


AMBIGUOUS = GrammarSpec(GrammarKind.LARK, 'start: s\ns: s s | "a"\n')


def test_an_ambiguous_grammar_is_stopped_while_its_tokens_are_still_quick() -> None:
    """Token 700 would take 60 ms, token 2000 a second, and the text ends at no limit of the parser."""
    ambiguous = GrammarCompiler(BASE_MODEL, core().info.vocab_size, core().info.eos_token_ids, 4).matcher(AMBIGUOUS)
    token, accepted = base_tokenizer().encode_plain("a")[0], list[int]()

    def go_on() -> None:
        while len(accepted) < 2000:
            ambiguous.accept(token)
            accepted.append(token)

    with pytest.raises(BadRequest, match="takes too long"):
        go_on()
    assert 100 < len(accepted) < 1000


def test_an_ambiguous_grammar_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "SLOW_S", 0.0005)
    never_ends = {"logit_bias": {0: -100.0, 4: -100.0}, "max_tokens": 1000}
    bad, good = (
        make_request(prompt(), "bad", grammar=AMBIGUOUS, **never_ends),
        make_request(prompt(), "good", max_tokens=9),
    )
    alone = run(core(), good).choices["good", 0].ids
    outcomes = run(make_core(BASE_MODEL, kv_pool_bytes=8 << 20), bad, good)
    assert isinstance(outcomes.errors["bad"], BadRequest)
    assert "takes too long" in outcomes.errors["bad"].message
    assert outcomes.choices["good", 0].ids == alone


def test_one_slow_mask_among_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch goes through threads that tell no times; a slow one is followed by masks filled one by one."""
    monkeypatch.setattr(masks, "WATCH_S", 0.0)
    compiler, seconds = GrammarCompiler(BASE_MODEL, core().info.vocab_size, core().info.eos_token_ids, 4), [0.0]

    def slow_time() -> float:
        seconds[0] += 1.0
        return seconds[0]

    compiled = [compiler.matcher(REGEX).compiled for _ in range(3)]
    quick, slow, other = (GrammarMatcher(c, t, t) for c, t in zip(compiled, (float, slow_time, float), strict=True))
    filler, filled = masks.MaskFiller(core().info.vocab_size, is_parallel=True, clock=SystemClock()), []
    for _ in range(MAX_SLOW_TOKENS + 3):
        filled.append(filler.start({(7, 0): quick, (8, 0): slow, (9, 0): other}).wait())
    assert all((step[seq, 0] == filled[0][7, 0]).all() for step in filled for seq in (7, 8, 9))
    digit = base_tokenizer().encode_plain("1")[0]
    quick.accept(digit)
    other.accept(digit)
    with pytest.raises(BadRequest, match="takes too long"):
        slow.accept(digit)


def test_a_hiccup_of_the_machine_does_not_end_a_grammar() -> None:
    compiler = GrammarCompiler(BASE_MODEL, core().info.vocab_size, core().info.eos_token_ids, 4)
    compiled = compiler.matcher(GrammarSpec(GrammarKind.REGEX, "a*")).compiled
    # The first one is slow by the clock on the wall, as where another process has the core, and begins the watch.
    times = iter([0.0, 1.0] * MAX_SLOW_TOKENS + [0.0] * 40 + [0.0, 1.0])
    watched = GrammarMatcher(compiled, itertools.count().__next__, lambda: next(times))
    token = base_tokenizer().encode_plain("a")[0]
    for _ in range(1 + MAX_SLOW_TOKENS + 20):
        watched.accept(token)
    with pytest.raises(BadRequest, match="takes too long"):
        watched.accept(token)


def test_compiled_grammars_are_bounded() -> None:
    engine = make_core(BASE_MODEL, max_compiled_grammars=2)
    for count in range(1, 5):
        engine.prepare_grammar(GrammarSpec(GrammarKind.REGEX, f"a{{{count}}}"))
    assert engine.inspect().num_compiled_grammars == 2
    assert generate(GrammarSpec(GrammarKind.REGEX, "a{1}"), engine)[0] == "a"


# -- property: random schemas --------------------------------------------------------------------------

NAMES = st.text("abcdefgh_", min_size=1, max_size=5)
NUMBERS = st.integers(-99, 99)


def bounded(kind: str, least: str, most: str, bounds: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    """A type with two inclusive bounds."""
    return st.builds(lambda low, size: {"type": kind, least: low, most: low + size}, bounds, st.integers(0, 20))


LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    bounded("integer", "minimum", "maximum", NUMBERS),
    bounded("string", "minLength", "maxLength", st.integers(0, 3)),
    st.lists(NAMES | NUMBERS, min_size=1, max_size=4, unique=True).map(lambda values: {"enum": values}),
    (NAMES | NUMBERS).map(lambda value: {"const": value}),
    st.sampled_from([{"type": "string", "format": "date"}, {"type": "string", "pattern": "^[a-c]{2}[0-9]?$"}]),
)


def objects(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects that require some of their properties."""
    fixed = {"type": "object", "additionalProperties": False}
    return st.builds(
        lambda properties, count: {**fixed, "properties": properties, "required": sorted(properties)[:count]},
        st.dictionaries(NAMES, children, min_size=1, max_size=3),
        st.integers(0, 3),
    )


def arrays(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Arrays of bounded length."""
    return st.builds(
        lambda item, low, size: {"type": "array", "items": item, "minItems": low, "maxItems": low + size},
        children,
        st.integers(0, 2),
        st.integers(0, 2),
    )


SCHEMAS = st.recursive(
    LEAVES,
    lambda children: (
        objects(children)
        | arrays(children)
        | st.builds(lambda parts: {"anyOf": parts}, st.lists(children, min_size=1, max_size=3))
    ),
    max_leaves=6,
)


@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(schema=SCHEMAS, seed=st.integers(0, 1000))
def test_output_validates_whenever_the_grammar_ended_it(schema: Any, seed: int) -> None:
    text, reason = generate(schema_grammar(schema, "schema"), seed=seed, temperature=1.5, max_tokens=60)
    if reason is FinishReason.LENGTH:
        return
    assert reason in (FinishReason.GRAMMAR, FinishReason.STOP)
    jsonschema.validate(json.loads(text), schema)
