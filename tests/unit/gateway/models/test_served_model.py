"""The model as a gateway knows it: its longest sequence where workers stream, and the scheme of its weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import pytest

from stratos.common.errors import ContextLengthExceeded, InvalidCheckpoint
from stratos.core.files.model_texts import text_names
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.settings import ModelConfig
from tests.support.paths import BASE_MODEL


@pytest.mark.parametrize(("max_stream_len", "expected"), [(0, 4096), (9000, 9000)])
async def test_the_longest_sequence_is_the_operators_or_the_models(max_stream_len: int, expected: int) -> None:
    model = ServedModel.load(ModelConfig(path=BASE_MODEL, max_input_tokens=100_000, max_stream_len=max_stream_len))
    try:
        assert model.base.max_model_len == expected
        assert model.max_tokens_left(100) == expected - 100
        with pytest.raises(ContextLengthExceeded):
            await model.encode_prompt((1,) * expected)
    finally:
        model.grammars.close()


def test_words_alone_are_enough_where_the_digest_is_given(tmp_path: Path) -> None:
    for name in text_names(BASE_MODEL):
        shutil.copy(BASE_MODEL / name, tmp_path / name)
    model = ServedModel.load(ModelConfig(path=tmp_path, digest="d" * 64))
    model.grammars.close()
    assert model.base.digest == "d" * 64
    with pytest.raises(InvalidCheckpoint, match="safetensors"):
        ServedModel.load(ModelConfig(path=tmp_path))


@pytest.mark.parametrize(("setting", "expected"), [("auto", ""), ("int8", "int8-rows-at-load")])
def test_a_gateway_knows_the_scheme_of_the_weights(setting: Literal["auto", "int8"], expected: str) -> None:
    model = ServedModel.load(ModelConfig(path=BASE_MODEL, quantization=setting))
    model.grammars.close()
    assert model.base.quantization == expected
