"""Parts of the vocabulary that suit tiny models: programs of the interpreter run one by one."""

from __future__ import annotations

import pytest

import tests.support.reference.triton_interpreter  # noqa: F401  # before anything that imports Triton
from stratos.engine.triton_kernels import split_sampling

VOCABULARY = 256


@pytest.fixture(autouse=True)
def _one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PART", "BLOCK", "NOISE_BLOCK", "SEARCH_BLOCK"):
        monkeypatch.setattr(split_sampling, name, VOCABULARY)
