"""The tokenizer of the model that ships with the repository, loaded when a test first needs it."""

from __future__ import annotations

import functools

from stratos.text.tokenizer import Tokenizer
from tests.support.paths import BASE_MODEL


@functools.cache
def base_tokenizer() -> Tokenizer:
    return Tokenizer.load(BASE_MODEL)
