"""The distilled draft is nearer to the base than the one it began with, on text that neither was trained on."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from scripts.demo.distil_draft import held_out_tv
from tests.support.paths import MODELS, ROOT


@cache
def model(name: str) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32).eval()


@pytest.mark.parametrize("text", ["headers", "prose", "unit_tests"])
def test_what_it_says_is_nearer_to_what_the_base_says(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(MODELS / "base" / "tokenizer.json"))
    words = (ROOT / f"tests/fixtures/held_out/{text}.txt").read_text(encoding="utf-8")
    ids = torch.tensor(tokenizer.encode(words[:8000], add_special_tokens=False).ids[: 4 * 256])
    shipped, distilled = (held_out_tv(model(name), model("base"), ids, 256) for name in ("draft", "draft-distilled"))
    assert distilled < 0.97 * shipped, (shipped, distilled)
