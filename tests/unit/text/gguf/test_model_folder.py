"""Model folders of GGUF files: tokenizers equal those of Hugging Face's files, templates, links, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.files.gguf.parts import is_gguf, read_gguf
from stratos.core.files.model_files import read_model_files
from stratos.text.chat_template import ChatMessage, ChatTemplate, read_template
from stratos.text.gguf.byte_pairs import PATTERNS
from stratos.text.gguf.folder import folder_contents, write_model_folder
from stratos.text.tokenizer import Tokenizer
from tests.support.paths import BASE_MODEL
from tests.support.reference.base_tokenizer import base_tokenizer
from tests.support.reference.byte_fallback import definition as byte_fallback_definition
from tests.support.reference.gguf_files import (
    LLAMA,
    byte_pair_vocabulary,
    gguf_bytes,
    llama_tensors,
    sentence_piece_vocabulary,
    shipped_vocabulary,
    tiny_llama,
    write,
)

TEXTS = [
    "the thé\n\n  heat 世界 \x00",
    "a b  c",
    "",
    " ",
    "it's 12345 o'clock",
    "<|im_start|>x<|im_end|>",
    "\t\r\n the",
]


def folder_of(tmp_path: Path, vocabulary: dict[str, Any]) -> Path:
    path = write(tmp_path / "tiny.gguf", tiny_llama(vocabulary))
    return write_model_folder(path, tmp_path / "folders" / "tiny")


def test_the_shipped_tokenizer_comes_back_from_a_gguf_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, shipped_vocabulary())
    found, shipped = Tokenizer.load(folder), base_tokenizer()
    source = Path(__file__).read_text()
    for text in (*TEXTS, source, "<|system|>be brief<|end|>"):
        assert found.encode(text) == shipped.encode(text)
        assert found.encode_plain(text) == shipped.encode_plain(text)
        assert found.decode(found.encode(text)) == shipped.decode(shipped.encode(text))
    assert found.special_tokens == shipped.special_tokens
    template, expected = read_template(folder), read_template(BASE_MODEL)
    assert template is not None
    assert template == expected
    messages = [ChatMessage("system", "be brief"), ChatMessage("user", "<|end|> it is")]
    assert ChatTemplate(template, found).encode(messages) == ChatTemplate(template, shipped).encode(messages)


@pytest.mark.parametrize("pre", PATTERNS)
def test_every_pattern_is_one_that_tokenizers_knows(tmp_path: Path, pre: str) -> None:
    tokenizer = Tokenizer.load(folder_of(tmp_path, byte_pair_vocabulary(pre)))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
        assert not tokenizer.special_ids & set(tokenizer.encode_plain(text))
    assert tokenizer.encode("<|im_start|> the<|im_end|>") == [260, 258, 261]
    assert tokenizer.encode("<tool_call>") == [262]  # defined by a user: found in a text, and shown
    assert 262 not in tokenizer.special_ids
    assert tokenizer.vocab_size == 263  # the padding behind it is no token
    begins = [259] if PATTERNS[pre].adds_bos else []
    assert tokenizer.encode(" the", add_special_tokens=True) == [*begins, 258]


def test_digits_are_cut_as_the_pattern_says(tmp_path: Path) -> None:
    vocabulary = byte_pair_vocabulary("gpt-2")
    vocabulary["tokenizer.ggml.tokens"][263] = "12"  # in the place of the padding
    vocabulary["tokenizer.ggml.token_type"][263] = 1
    vocabulary["tokenizer.ggml.merges"] = ["1 2"]
    lengths = {}
    for pre in ("gpt-2", "qwen2", "llama-bpe"):
        vocabulary["tokenizer.ggml.pre"] = pre
        path = write(tmp_path / f"{pre}.gguf", tiny_llama(vocabulary))
        tokenizer = Tokenizer.load(write_model_folder(path, tmp_path / pre))
        lengths[pre] = len(tokenizer.encode("12"))
    assert lengths == {"gpt-2": 1, "qwen2": 2, "llama-bpe": 1}


def test_pieces_with_scores_are_joined_as_their_merges_are(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder_of(tmp_path, sentence_piece_vocabulary()))
    blank = 259
    assert tokenizer.encode("the heat") == [blank + 6, blank, blank + 5, blank + 7, blank + 1]
    assert tokenizer.encode("é") == [blank, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.encode("the", add_special_tokens=True) == [1, blank + 6]  # where the file does not say
    for text in ("the heat", "世界", "a\n\nb", "  a"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.strips_leading_blank
    assert not {0, 1, 2} & set(tokenizer.encode_plain("a</s><s>"))


def test_a_definition_of_pieces_equals_the_one_of_hugging_face(tmp_path: Path) -> None:
    expected = byte_fallback_definition()
    contents = folder_contents(read_gguf(write(tmp_path / "x.gguf", tiny_llama(sentence_piece_vocabulary()))))
    found = json.loads(contents["tokenizer.json"])
    assert found["normalizer"] == expected["normalizer"]
    assert found["decoder"] == expected["decoder"]
    assert found["added_tokens"] == expected["added_tokens"]
    rules = expected["model"].keys() - {"vocab", "merges"}
    assert {name: found["model"][name] for name in rules} == {name: expected["model"][name] for name in rules}


def test_a_folder_has_all_that_a_model_folder_has(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, byte_pair_vocabulary())
    files = read_model_files(folder)
    assert files.eos_token_ids == (261, 259)  # the named one, and the one that is known by its text
    assert files.vocab_size == 264
    assert files.max_model_len == 128
    assert [path.name for path in files.weight_paths] == ["model.gguf"]
    assert (folder / "model.gguf").resolve() == (tmp_path / "tiny.gguf").resolve()
    again = write_model_folder(tmp_path / "tiny.gguf", tmp_path / "again")
    assert read_model_files(again).digest == files.digest
    assert {p.name: p.read_bytes() for p in again.iterdir()} == {p.name: p.read_bytes() for p in folder.iterdir()}
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"], "nothing half-written stays"


def test_the_parts_of_a_split_model_are_linked_by_names_of_ours(tmp_path: Path) -> None:
    tensors, words = list(llama_tensors(264).items()), byte_pair_vocabulary()
    for number in range(2):
        keys = {"split.no": number, "split.count": 2, **({} if number else {**LLAMA, **words})}
        write(tmp_path / f"big-{number + 1:05d}-of-00002.gguf", gguf_bytes(keys, dict(tensors[number::2])))
    folder = write_model_folder(tmp_path / "big-00001-of-00002.gguf", tmp_path / "big")
    names = [path.name for path in read_model_files(folder).weight_paths]
    assert names == ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"]
    assert read_gguf(folder / names[0]).tensors.keys() == dict(tensors).keys()


def test_a_folder_that_cannot_be_written_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", tiny_llama())
    with pytest.raises(BadRequest, match="cannot be written"):
        write_model_folder(path, path / "below")
    with pytest.raises(InvalidCheckpoint, match="there is no such file"):
        write_model_folder(tmp_path / "none.gguf", tmp_path / "x")
    assert is_gguf(path)
    assert not is_gguf(tmp_path)


def changed(key: str, change: Any) -> dict[str, Any]:
    vocabulary = {**byte_pair_vocabulary()}
    name = f"tokenizer.ggml.{key}"
    if change is None:
        del vocabulary[name]
    else:
        vocabulary[name] = change(vocabulary[name]) if callable(change) else change
    return vocabulary


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (changed("model", "t5"), "model 't5' is not supported; supported: gpt2, llama"),
        (changed("model", None), r"tokenizer\.ggml\.model is missing"),
        (changed("pre", "jina-v2-de"), "pre 'jina-v2-de' is not supported"),
        (changed("pre", None), "pre 'default' is not supported"),
        (changed("token_type", lambda kinds: kinds[:-1]), "263 items for 264 tokens"),
        (changed("token_type", lambda kinds: [9, *kinds[1:]]), "unknown kind 9"),
        (changed("tokens", lambda tokens: [*tokens[:-1], "!"]), "has '!' twice, as 0 and 263"),
        (changed("tokens", lambda tokens: [3] * len(tokens)), "must be an array of texts"),
        (changed("bos_token_id", 264), "bos_token_id is 264, and there are 264 tokens"),
        (changed("eos_token_id", 2**31), "eos_token_id must be an integer"),
        (changed("merges", ["Ġ t", "xyz"]), "has 'xyz', which is no merge"),
        (changed("merges", None), r"tokenizer\.ggml\.merges is missing"),
        ({**sentence_piece_vocabulary(), "tokenizer.ggml.scores": [0.0]}, "scores must be 267 numbers"),
        ({**sentence_piece_vocabulary(), "tokenizer.ggml.remove_extra_whitespaces": True}, "remove_extra_whitespaces"),
    ],
)
def test_a_tokenizer_that_is_broken_or_not_there_is_refused(
    tmp_path: Path, vocabulary: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "x.gguf", tiny_llama(vocabulary))
    with pytest.raises(InvalidCheckpoint, match=message):
        write_model_folder(path, tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_more_tokens_than_rows_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", gguf_bytes({**LLAMA, **byte_pair_vocabulary()}, llama_tensors(263)))
    with pytest.raises(InvalidCheckpoint, match="264 tokens for 263 rows"):
        write_model_folder(path, tmp_path / "x")
