"""Tokens are told apart by kind, by whether the window had them, and by how sure the float model was."""

from __future__ import annotations

import numpy as np
import pytest

from stratos.common.errors import BadRequest
from stratos.quality.completions import function_heads, parses
from stratos.quality.held_out import HeldOutText, cut_windows
from stratos.quality.strata import all_strata, token_kind
from stratos.text.tokenizer import Tokenizer
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(ROOT / "models" / "base")


@pytest.mark.parametrize(
    ("text", "kind"),
    [("  \n", "space"), (" name_1", "name"), ("__", "name"), ("42", "number"), (" ((", "punctuation"), ("(x", "mixed")],
)
def test_kinds_by_text(text: str, kind: str) -> None:
    assert token_kind(text) == kind


def test_every_kind_of_stratum_covers_every_token_once(tokenizer: Tokenizer) -> None:
    texts = [HeldOutText(name=name, text="def total(values):\n    return total + 1\n" * 40) for name in ("one", "two")]
    windows = cut_windows(texts, tokenizer, 16, 10_000)
    certainty = np.random.default_rng(0).normal(size=(len(windows), 15))
    strata = dict(all_strata(windows, tokenizer, certainty))
    for prefix in ("text: ", "kind: ", "certainty: "):
        masks = [mask for name, mask in strata.items() if name.startswith(prefix)]
        assert len(masks) > 1
        assert (sum(mask.astype(int) for mask in masks) == 1).all()
    names = strata["kind: name"]
    assert ((strata["names: seen before"].astype(int) + strata["names: new"]) == names).all()
    assert strata["certainty: least certain quarter"][certainty == certainty.min()].all()


def test_a_name_is_seen_before_within_its_window_only(tokenizer: Tokenizer) -> None:
    windows = cut_windows([HeldOutText(name="one", text=" alpha beta" * 200)], tokenizer, 16, 10_000)
    strata = dict(all_strata(windows, tokenizer, np.zeros((len(windows), 15))))
    new = strata["names: new"]
    assert (new.sum(1) == len(set(windows[0].token_ids)) - 1).all()  # each window begins anew; its first is context
    assert strata["names: seen before"][:, -1].all()


def test_windows_share_their_tokens_among_texts(tokenizer: Tokenizer) -> None:
    long, short = ("word and word " * 2000), ("another text " * 100)
    windows = cut_windows([HeldOutText(name="l", text=long), HeldOutText(name="s", text=short)], tokenizer, 32, 1024)
    names = [window.text_name for window in windows]
    assert names.count("l") == 16
    assert 0 < names.count("s") <= 16
    assert {len(window.token_ids) for window in windows} == {32}
    with pytest.raises(BadRequest, match="at least 8"):
        cut_windows([HeldOutText(name="s", text="too little")], tokenizer, 32, 1024)


def test_heads_of_functions_come_dedented_and_once() -> None:
    text = (
        "class A:\n    def one(self, x):\n        pass\n    def one(self, x):\n        pass\nasync def two() -> int:\n"
    )
    assert function_heads([HeldOutText(name="t", text=text)], 10) == [
        "def one(self, x):\n",
        "async def two() -> int:\n",
    ]
    assert len(function_heads([HeldOutText(name="t", text=text)], 1)) == 1


@pytest.mark.parametrize(
    ("completion", "is_python"),
    [
        ("    return 1\n", True),
        ('    """open string\n', True),
        ("    x = (1,\n    and = cut", True),
        ("    if x:\n", True),
        ("    x = = 1\n", False),
        ("return 1\n", False),
        ("    pass\ndef g(:\n", False),
        ("    no whole line", False),
        ("\x00\n", False),
    ],
)
def test_python_and_its_beginning_parse(completion: str, is_python: bool) -> None:
    assert parses("def f(a):\n", completion) is is_python


def test_a_text_longer_than_a_tokenizer_takes_is_cut_in_windows_too(tokenizer: Tokenizer) -> None:
    line = "return 1\n"
    long = HeldOutText(name="long", text=line * 60_000)
    windows = cut_windows([long], tokenizer, 64, 10_000_000)
    pieces = tokenizer.encode_plain(line * 100)
    assert len(windows) * 64 > 0.99 * len(pieces) * 600
    assert {len(window.token_ids) for window in windows} == {64}
