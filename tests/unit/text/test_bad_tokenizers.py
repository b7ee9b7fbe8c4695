"""Damaged and hostile tokenizer files: one error that names the file, no crash, no big allocation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stratos.common.errors import InvalidCheckpoint
from stratos.text.chat_template import ChatTemplate, read_template
from stratos.text.tokenizer import Tokenizer
from tests.support.address_space import bounded_memory
from tests.support.examples import examples
from tests.support.paths import BASE_MODEL
from tests.support.reference.byte_fallback import definition as byte_fallback_definition

BASE = BASE_MODEL
ABSURD: list[Any] = [
    *(0, -1, 1, 2**31, 2**40, 10**30, 1.5, 1e308, math.nan, None, True, "", "x" * 10_000, "\ud800", "Ġ", "<0x41>"),
    *([], [None], [[]], {}, {"type": "Nothing"}, {"type": "Sequence"}, {"type": []}),
]
health = list(HealthCheck)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values of a JSON document, at most a handful per container."""
    inner = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    found = [path] if path else []
    for key, value in inner[:12]:
        found += places(value, (*path, key))
    return found


def load(folder: Path) -> str:
    """Load and use what a gateway uses; returns the refusal."""
    try:
        with bounded_memory():
            tokenizer = Tokenizer.load(folder)
            source = read_template(folder)
            if source is not None:
                ChatTemplate(source, tokenizer)
            tokenizer.decode(tokenizer.encode_plain("hello, 世界"))
            tokenizer.decode(tokenizer.encode("hello", add_special_tokens=True))
    except InvalidCheckpoint as error:
        return error.message
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


def write(folder: Path, definition: Any, config: Any) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


CONFIG = {"chat_template": "{{ messages[0].content }}", "bos_token": "<s>", "eos_token": {"content": "</s>"}}


@settings(max_examples=examples(300), deadline=None, derandomize=True, suppress_health_check=health)
@example(at=("added_tokens", 0, "id"), value=2**40)
@given(at=st.sampled_from(places(byte_fallback_definition())), value=st.sampled_from(ABSURD))
def test_absurd_values_end_in_one_error(folder: Path, at: tuple[Any, ...], value: Any) -> None:
    definition = byte_fallback_definition()
    node: Any = definition
    for key in at[:-1]:
        node = node[key]
    node[at[-1]] = value
    write(folder, definition, CONFIG)
    message = load(folder)
    assert not message or "tokenizer.json" in message
    assert len(message) < 2000


@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=health)
@given(key=st.sampled_from([*CONFIG, "added_tokens_decoder", "model_max_length"]), value=st.sampled_from(ABSURD))
def test_absurd_settings_end_in_one_error(folder: Path, key: str, value: Any) -> None:
    write(folder, byte_fallback_definition(), {**CONFIG, key: value})
    message = load(folder)
    assert not message or "tokenizer" in message or "template" in message


@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=health)
@given(data=st.data())
def test_damaged_bytes_end_in_one_error(folder: Path, data: Any) -> None:
    content = bytearray((BASE / "tokenizer.json").read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    (folder / "tokenizer.json").write_bytes(content)
    message = load(folder)
    assert not message or "tokenizer.json" in message
