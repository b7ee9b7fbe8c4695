"""The model that ships, as tests without a platform use it: read at the first call, once in a test process."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from stratos.core.files.model_files import read_model_files
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.models.catalogue import ModelCatalogue
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.settings import ModelConfig
from stratos_gateway.preparation.generation import PreparationTools
from tests.support.paths import BASE_MODEL

VOCAB_SIZE = 4096
"""Of ``models/base``; a constant, so that parameters of tests need no file."""


@functools.cache
def served_model() -> ServedModel:
    """What a gateway knows of it."""
    return ServedModel.load(ModelConfig(path=BASE_MODEL, name="base"))


def preparation_tools(model: ServedModel, *, max_tokens: int = 16, **tools: Any) -> PreparationTools:
    """Tools of a gateway that serves one model, with an output limit of its own."""
    catalogue = ModelCatalogue(ModelSet([replace(model, default_max_tokens=max_tokens)]))
    return PreparationTools(**{"catalogue": catalogue, **tools})


@functools.cache
def base_digest() -> str:
    """Of its files, as placements and adapters name the model."""
    return read_model_files(BASE_MODEL).digest


@functools.cache
def shipped_tokenizer(folder: Path = BASE_MODEL) -> Tokenizer:
    """The tokenizer of one of the shipped folders."""
    return Tokenizer.load(folder)


@functools.cache
def surrounding_tokenizer() -> Tokenizer:
    """The shipped tokenizer, if it put a token before every text and another behind it."""
    made = tokenizers.Tokenizer.from_file(str(BASE_MODEL / "tokenizer.json"))
    ends = [("<|system|>", 1), ("<|end|>", 4)]
    made.post_processor = TemplateProcessing(single="<|system|> $A <|end|>", special_tokens=ends)
    return Tokenizer(made.to_str())
