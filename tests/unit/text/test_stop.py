from hypothesis import given
from hypothesis import strategies as st

from stratos.text.stop import StopMatcher

texts = st.text(alphabet="ab<", max_size=30)
stops_lists = st.lists(st.text(alphabet="ab<", min_size=1, max_size=4), min_size=1, max_size=3)


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Letter by letter: the first end wins, of equal ends the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def run(matcher: StopMatcher, pieces: list[str]) -> tuple[str, str | None]:
    shown = ""
    for number, piece in enumerate(pieces, 1):
        result = matcher.feed(piece, number)
        shown += result.text
        if result.stop is not None:
            return shown, result.stop
    return shown + matcher.flush(), None


@given(st.lists(texts, max_size=8), stops_lists, st.booleans())
def test_any_cut_gives_what_the_whole_text_gives(pieces: list[str], stops: list[str], include: bool) -> None:
    assert run(StopMatcher(stops, include_stop=include), pieces) == reference("".join(pieces), stops, include)


@given(st.lists(texts, max_size=8), stops_lists)
def test_held_text_is_never_longer_than_needed(pieces: list[str], stops: list[str]) -> None:
    matcher, shown, seen = StopMatcher(stops), "", ""
    for number, piece in enumerate(pieces, 1):
        result = matcher.feed(piece, number)
        shown, seen = shown + result.text, seen + piece
        if result.stop is not None:
            return
        held = seen[len(shown) :]
        assert any(stop.startswith(held) and stop != held for stop in stops) or not held


def test_min_tokens_gates_the_end_of_a_match() -> None:
    matcher = StopMatcher(["ab"], min_tokens=3)
    assert matcher.feed("ab", 1) == ("ab", None)
    assert matcher.feed("a", 2) == ("", None)
    assert matcher.feed("b", 3) == ("", "ab")


def test_earliest_end_wins_over_the_first_in_the_list() -> None:
    assert StopMatcher(["long tail", "g"]).feed("a long tail", 1) == ("a lon", "g")


def test_without_stops_nothing_is_held() -> None:
    matcher = StopMatcher(())
    assert not matcher.is_active
    assert matcher.feed("anything", 1).text == "anything"
