import functools
import itertools
import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from stratos.common.errors import ContextLengthExceeded, InvalidCheckpoint
from stratos.text.detokenizer import Detokenizer
from stratos.text.tokenizer import Tokenizer
from tests.support.paths import BASE_MODEL
from tests.support.reference.shipped_model import VOCAB_SIZE, shipped_tokenizer


@functools.cache
def reference() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(BASE_MODEL / "tokenizer.json"))


ids_lists = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=60)


def pieces(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


@given(ids_lists)
def test_decode_is_that_of_the_tokenizers_library(ids: list[int]) -> None:
    assert shipped_tokenizer().decode(ids) == reference().decode(ids, skip_special_tokens=True)


@given(ids_lists, st.lists(st.integers(0, 100), max_size=60))
def test_deltas_put_together_are_the_full_decode(ids: list[int], cuts: list[int]) -> None:
    detokenizer = Detokenizer(shipped_tokenizer())
    parts = [detokenizer.push(piece) for piece in pieces(ids, cuts)]
    assert "".join(parts) + detokenizer.flush() == reference().decode(ids, skip_special_tokens=True)


@given(st.text(max_size=40))
def test_valid_text_never_shows_half_a_character(text: str) -> None:
    detokenizer = Detokenizer(shipped_tokenizer())
    shown = ""
    for token_id in shipped_tokenizer().encode_plain(text):
        shown += detokenizer.push([token_id])
        assert text.startswith(shown)
    assert shown + detokenizer.flush() == text


@given(st.binary(max_size=40))
def test_any_bytes_decode_as_python_decodes_them(raw: bytes) -> None:
    by_byte = {
        shipped_tokenizer().token_bytes(i): i
        for i in range(shipped_tokenizer().vocab_size)
        if len(shipped_tokenizer().token_bytes(i)) == 1
    }
    ids = [by_byte[bytes([byte])] for byte in raw]
    detokenizer = Detokenizer(shipped_tokenizer())
    text = "".join(detokenizer.push([i]) for i in ids) + detokenizer.flush()
    assert text == raw.decode("utf-8", "replace")


def test_special_tokens_are_read_only_where_they_may_be() -> None:
    text = "a<|end|>b"
    assert 4 in shipped_tokenizer().encode(text)
    assert not shipped_tokenizer().special_ids & set(shipped_tokenizer().encode_plain(text))
    assert shipped_tokenizer().decode(shipped_tokenizer().encode_plain(text)) == text


def test_token_text_names_parts_of_characters_by_their_bytes() -> None:
    first = shipped_tokenizer().encode_plain("\U0001f600")[0]
    assert shipped_tokenizer().token_text(first).startswith("bytes:\\x")
    assert shipped_tokenizer().token_text(shipped_tokenizer().encode_plain("a")[0]) == "a"
    assert shipped_tokenizer().token_bytes(shipped_tokenizer().vocab_size + 5) == b""


@given(st.text(max_size=200))
def test_least_tokens_is_a_bound_from_below(text: str) -> None:
    assert shipped_tokenizer().min_num_tokens(text) <= len(shipped_tokenizer().encode_plain(text))


def sentencepiece_like() -> Tokenizer:
    vocab = {
        "<unk>": 0,
        "<s>": 1,
        "</s>": 2,
        "\u2581hello": 3,
        "\u2581": 4,
        "world": 5,
        "<0xE2>": 6,
        "<0x82>": 7,
        "<0xAC>": 8,
    }
    special = [
        {
            "id": i,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for name, i in vocab.items()
        if i < 3
    ]
    decoders = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    model = {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True, "unk_token": "<unk>"}
    definition = {
        "version": "1.0",
        "added_tokens": special,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }
    for name in ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor"):
        definition[name] = None
    return Tokenizer(json.dumps(definition))


def test_byte_fallback_vocabularies_strip_one_blank_and_join_bytes() -> None:
    tokenizer = sentencepiece_like()
    ids = [1, 3, 4, 5, 6, 7, 8, 2]
    detokenizer = Detokenizer(tokenizer)
    parts = [detokenizer.push([i]) for i in ids]
    assert "".join(parts) == tokenizer.decode(ids) == "hello world€"
    assert parts[4:6] == ["", ""]


def test_a_decoder_that_is_not_known_is_refused(tmp_path: Path) -> None:
    definition = json.loads((BASE_MODEL / "tokenizer.json").read_text())
    definition["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(InvalidCheckpoint, match="WordPiece"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": {"vocab": []}}'])
def test_a_broken_file_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InvalidCheckpoint, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_text_of_more_tokens_than_any_request_has_is_refused_before_they_are_listed() -> None:
    with pytest.raises(ContextLengthExceeded, match="250000 tokens"):
        shipped_tokenizer().encode("\x01" * 250_000)
