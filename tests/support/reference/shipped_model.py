"""The model that ships, as tests without a platform use it: read at the first call, once in a test process."""

from __future__ import annotations

import functools
from pathlib import Path

from stratos.core.files.model_files import read_model_files
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.settings import ModelConfig
from tests.support.paths import BASE_MODEL

VOCAB_SIZE = 4096
"""Of ``models/base``; a constant, so that parameters of tests need no file."""


@functools.cache
def served_model() -> ServedModel:
    """What a gateway knows of it."""
    return ServedModel.load(ModelConfig(path=BASE_MODEL, name="base"))


@functools.cache
def base_digest() -> str:
    """Of its files, as placements and adapters name the model."""
    return read_model_files(BASE_MODEL).digest


@functools.cache
def shipped_tokenizer(folder: Path = BASE_MODEL) -> Tokenizer:
    """The tokenizer of one of the shipped folders."""
    return Tokenizer.load(folder)
