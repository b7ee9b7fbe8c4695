"""What a client sees of a choice, for every tokenizer and however tokens arrive: pieces of one text, cut once.

Held against one-shot decoding of all tokens, cut at the first stop string.
"""

from __future__ import annotations

import codecs
import functools
import itertools
import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from stratos.core.requests.records import FinishReason, PositionLogprobs, TokenLogprob
from stratos.text.detokenizer import Detokenizer
from stratos.text.stop import StopMatcher
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.generation.journal import ChoiceJournal
from tests.support.paths import MODELS
from tests.support.reference.byte_fallback import byte_fallback_tokenizer, definition
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.deltas import delta

TOKENIZERS = ("base", "draft", "byte-fallback")


@functools.cache
def tokenizer_of(name: str) -> Tokenizer:
    return byte_fallback_tokenizer() if name == "byte-fallback" else shipped_tokenizer(MODELS / name)


BYTE_FALLBACK = tokenizers.Tokenizer.from_str(json.dumps(definition()))

texts = st.text(alphabet=st.sampled_from("ab the\n<|>éß€\u2581\ufffd\U0001f600\U0001f469\u200d\u0301"), max_size=24)


@functools.cache
def ids_by_bytes(tokenizer: Tokenizer) -> dict[bytes, int]:
    return {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}


@st.composite
def outputs(draw: st.DrawFn, tokenizer: Tokenizer) -> list[int]:
    """Ids that encode a text, that spell it byte by byte, or that no tokenizer would choose."""
    by_byte = ids_by_bytes(tokenizer)
    ids: list[int] = []
    for kind in draw(st.lists(st.sampled_from(["text", "bytes", "random", "special"]), max_size=4)):
        match kind:
            case "text":
                ids += tokenizer.encode_plain(draw(texts))
            case "bytes":
                ids += [by_byte[bytes([byte])] for byte in draw(texts).encode() + draw(st.binary(max_size=3))]
            case "random":
                ids += draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=6))
            case "special":
                ids.append(draw(st.sampled_from(sorted(tokenizer.special_ids))))
    return ids


def first_stop(text: str, stops: list[str]) -> int | None:
    """Where the text is cut: the earliest end wins, of equal ends the longest."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return end - max(map(len, found))
    return None


def certain(tokenizer: Tokenizer, ids: list[int]) -> str:
    """What no further token can change."""
    raw = b"".join(tokenizer.token_bytes(i) for i in ids if i not in tokenizer.special_ids)
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(raw)
    return text.removeprefix(" ") if tokenizer.strips_leading_blank else text


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_a_client_sees_a_growing_beginning_of_the_one_text(name: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(name)
    ids = data.draw(outputs(tokenizer))
    whole = tokenizer.decode(ids)
    places = data.draw(st.lists(st.tuples(st.integers(0, len(whole)), st.integers(1, 6)), max_size=3))
    stops = [whole[begin : begin + size] for begin, size in places if begin < len(whole)]
    stops += data.draw(st.lists(texts.filter(bool), max_size=1))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=12))
    has_logprobs = data.draw(st.booleans())
    cut = first_stop(whole, stops)
    expected = whole if cut is None else whole[:cut]

    journal = ChoiceJournal(0, Detokenizer(tokenizer), StopMatcher(stops))
    shown = ""
    edges = sorted([0, len(ids), *cuts])
    for number, (begin, end) in enumerate(itertools.pairwise(edges), 2):
        entries = [PositionLogprobs(TokenLogprob(i, -1.0, 1)) for i in ids[begin:end]] if has_logprobs else ()
        journal.accept(delta(begin, ids[begin:end], entries, FinishReason.LENGTH if number == len(edges) else None))
        if journal.is_finished or data.draw(st.booleans()):
            chunk = journal.take()
            shown += chunk.text if chunk is not None else ""
            assert expected.startswith(shown)
            known = certain(tokenizer, journal.ids)
            held = known[len(shown) :]
            assert journal.is_finished or not held or any(s.startswith(held) and s != held for s in stops)
        if journal.is_finished:
            break
    assert shown == expected
    assert journal.finish_reason == ("length" if cut is None else "stop")
    if cut is not None and len(journal.ids) < len(ids):
        assert first_stop(certain(tokenizer, journal.ids), stops) == cut
        assert first_stop(certain(tokenizer, journal.ids[:-1]), stops) is None


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_no_replacement_character_that_the_text_does_not_have(name: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(name)
    text = data.draw(st.text(max_size=20).filter(lambda text: "\ufffd" not in text))
    by_byte = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    detokenizer = Detokenizer(tokenizer, is_continued=True)
    for byte in text.encode():
        assert "\ufffd" not in detokenizer.push([by_byte[bytes([byte])]])
    assert detokenizer.flush() == ""


@given(texts)
def test_byte_fallback_decodes_as_the_tokenizers_library(text: str) -> None:
    tokenizer = tokenizer_of("byte-fallback")
    ids = tokenizer.encode_plain(text)
    assert BYTE_FALLBACK.decode(ids) == tokenizer.decode(ids)
    assert tokenizer.decode([1, *ids, 2]) == text.replace("\u2581", " ")


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_an_output_goes_on_with_the_text_of_its_prompt(name: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(name)
    prompt, output = tokenizer.encode_plain(data.draw(texts)), data.draw(outputs(tokenizer))
    detokenizer = Detokenizer(tokenizer, is_continued=tokenizer.has_text(prompt))
    text = "".join(detokenizer.push([token]) for token in output) + detokenizer.flush()
    assert tokenizer.decode(prompt) + text == tokenizer.decode(prompt + output)


def test_a_blank_behind_a_prompt_is_kept_and_one_at_the_beginning_is_not() -> None:
    tokenizer: Any = tokenizer_of("byte-fallback")
    the = tokenizer.encode_plain("the")
    assert tokenizer.decode(the) == "the"
    assert Detokenizer(tokenizer, is_continued=tokenizer.has_text(the)).push(the) == " the"
    assert Detokenizer(tokenizer, is_continued=tokenizer.has_text([1])).push(the) == "the"
