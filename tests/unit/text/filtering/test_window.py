"""However a text is cut into pieces, the same part of it is shown and the same hit is found."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stratos.common.errors import BadRequest
from stratos.core.tenancy.content import ContentPolicy
from stratos.text.filtering.rules import Hit, Rules
from stratos.text.filtering.window import TextWindow

WORDS = {"words": ("ab", "foo bar", "цена", "c")}
PATTERNS = {
    "edge": r"\bx\d+y\b", "begin": "^zz", "end": "q$", "wide": "k.{3,30}l", "caseless": "(?i)stop",
    "lines": r"(?m)^=+$",
}  # fmt: skip
RULES = Rules(WORDS, PATTERNS, 16)
PARTS = [*"abcxy01 k=zql\n-", "foo bar", " ab ", "x1y", "zz", "STOP", "k123l", "ЦЕНА", "ß"]
TEXTS = st.lists(
    st.sampled_from(PARTS),
    max_size=60,
).map("".join)


def shown_in_pieces(text: str, cuts: list[int], rules: Rules = RULES) -> tuple[str, Hit | None]:
    window, shown = TextWindow(rules), ""
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for begin, end in pairwise(places):
        piece = window.feed(text[begin:end])
        shown += piece
        if window.hit is not None:
            return shown, window.hit
        assert len(shown) >= end - rules.max_chars - 1, "no more is held back than the window, and one character"
    return shown + window.feed("", is_last=True), window.hit


@given(TEXTS, st.lists(st.integers(0, 1000), max_size=40))
@example("x1y", [2])
@example("-ab-", [1, 2, 3])
def test_pieces_do_not_matter(text: str, cuts: list[int]) -> None:
    whole = shown_in_pieces(text, [])
    assert shown_in_pieces(text, cuts) == whole
    assert shown_in_pieces(text, list(range(len(text)))) == whole
    shown, hit = whole
    assert hit == RULES.first_hit(text)
    assert shown == (text if hit is None else text[: hit.begin])


SIMPLE = Rules({}, {"a": r"\bfoo\b", "b": r"[0-9]{3}", "c": "x.{0,20}y"}, 12)


@given(st.lists(st.sampled_from([*"foxy019 -", "foo", "123"]), max_size=50).map("".join))
def test_the_hit_is_the_first_of_all_that_there_are(text: str) -> None:
    """Every place and every length, tried by Python's own expressions."""
    sources = {"a": r"\bfoo\b", "b": r"[0-9]{3}", "c": "x.{0,20}y"}
    found = [
        (end, begin, rule)
        for rule, source in sources.items()
        for begin in range(len(text))
        for end in range(begin + 1, min(len(text), begin + 12) + 1)
        if _is_match(source, text, begin, end)
    ]
    hit = SIMPLE.first_hit(text)
    expected = min(found, default=None)
    assert (None if hit is None else (hit.end, hit.begin, hit.rule)) == expected


def _is_match(source: str, text: str, begin: int, end: int) -> bool:
    """Whether exactly this part matches, with what stands around it in sight."""
    match = re.compile(rf"{source.replace('{0,20}', f'{{{max(0, end - begin - 2)}}}')}").match(text, begin)
    return match is not None and match.end() == end


def test_words_are_whole_and_in_any_case() -> None:
    rules = Rules({"w": ("naïve", "big deal", "c++")}, {}, 64)
    for text in ("NAÏVE", "so naïve.", "a Big  \n Deal", "(c++)", "C++"):
        assert rules.first_hit(text), text
    for text in ("naïvely", "xnaïve", "big_deal", "bigdeal", "c+", "xc++"):
        assert not rules.first_hit(text), text


@pytest.mark.parametrize(
    "pattern", ["(a", "(?=a)", r"(a)\1", "a*", "^", "x{1000}{1000}", r"\b", "(?:a{1000}){1000}", "a)|(b"]
)
def test_patterns_that_cannot_be_are_refused(pattern: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Rules({}, {"bad": pattern}, 64)
    assert caught.value.code == "invalid_content_policy"


def test_shipped_groups_are_known_by_name() -> None:
    assert Rules.of(ContentPolicy()).is_empty
    with pytest.raises(BadRequest):
        Rules.of(ContentPolicy(shipped=("no such group",)))
    with pytest.raises(BadRequest):
        Rules({"same": ("a",)}, {"same": "b"}, 64)
