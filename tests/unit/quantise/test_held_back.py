"""Ends of texts are held back: whole lines where there are lines, and the end of a line where there is one."""

from __future__ import annotations

import pytest

from stratos.quality.expected import EXPECTED_TOKENS
from stratos.quality.held_out import HeldOutText
from stratos.quantise.held_back import hold_back
from stratos.text.tokenizer import Tokenizer
from tests.support.paths import ROOT

WORDS = "a few words of text " * 2000


@pytest.mark.parametrize(
    ("text", "has_lines"), [(WORDS, False), (WORDS + "\n", False), (WORDS.replace("of", "\n"), True)]
)
def test_an_end_is_cut_off_every_text(text: str, has_lines: bool) -> None:
    tokenizer = Tokenizer.load(ROOT / "models/draft")
    (kept,), end = hold_back([HeldOutText(name="one", text=text)], tokenizer)
    assert kept.text + end == text
    assert kept.text.endswith("\n") is has_lines
    assert len(tokenizer.encode_plain(end)) > EXPECTED_TOKENS
