from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.core.requests.records import FinishReason, PositionLogprobs, TokenLogprob
from stratos.text.detokenizer import Detokenizer
from stratos.text.stop import StopMatcher
from stratos_gateway.generation.journal import ChoiceJournal, JournalConflict
from tests.support.reference.shipped_model import VOCAB_SIZE, shipped_tokenizer
from tests.support.worlds.deltas import delta

token_ids = st.lists(st.integers(5, VOCAB_SIZE - 1), min_size=1, max_size=40)


def make(*stops: str, min_tokens: int = 0) -> ChoiceJournal:
    return ChoiceJournal(0, Detokenizer(shipped_tokenizer()), StopMatcher(stops, min_tokens=min_tokens))


def say(journal: ChoiceJournal, offset: int, ids: list[int], reason: FinishReason | None) -> None:
    """As a session does: a token that is all the news comes by itself."""
    if len(ids) == 1 and reason is None:
        journal.accept_token(offset, ids[0])
    else:
        journal.accept(delta(offset, ids, finish_reason=reason))


def drain(journal: ChoiceJournal) -> tuple[str, list[int]]:
    text, ids = "", []
    while (chunk := journal.take()) is not None:
        text, ids = text + chunk.text, ids + chunk.token_ids
    return text, ids


@given(token_ids, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.booleans()), max_size=20))
def test_any_deltas_with_repeats_give_each_token_once(ids: list[int], deltas: list[tuple[int, int, bool]]) -> None:
    journal, text, taken = make(), "", []
    for begin, length, is_taken in [*deltas, (0, len(ids), True)]:
        begin = min(begin, len(journal.ids))
        end = min(begin + length, len(ids))
        say(journal, begin, ids[begin:end], FinishReason.LENGTH if end == len(ids) else None)
        if is_taken:
            part, part_ids = drain(journal)
            text, taken = text + part, taken + part_ids
    assert taken == ids
    assert text == shipped_tokenizer().decode(ids)
    assert journal.finish_reason == "length"


@given(token_ids, st.lists(st.integers(0, 40), max_size=5))
def test_cuts_do_not_change_where_a_stop_string_ends_the_choice(ids: list[int], cuts: list[int]) -> None:
    text = shipped_tokenizer().decode(ids)
    stop = text[len(text) // 2 : len(text) // 2 + 2] or "x"

    def run(edges: list[int]) -> tuple[str, list[int], str | None]:
        journal = make(stop)
        for begin, end in itertools.pairwise(edges):
            say(journal, begin, ids[begin:end], FinishReason.LENGTH if end == len(ids) else None)
        return (*drain(journal), journal.finish_reason)

    whole = run([0, len(ids)])
    assert run(sorted({0, len(ids), *(c % len(ids) for c in cuts)})) == whole
    if stop in text:
        assert whole[0] == text.partition(stop)[0]
        assert whole[2] == "stop"


def test_gaps_and_contradictions_are_conflicts() -> None:
    journal = make()
    journal.accept(delta(0, [10, 11]))
    for offset, ids in ((3, [12]), (1, [99]), (0, [10, 99, 12])):
        with pytest.raises(JournalConflict):
            say(journal, offset, ids, None)
    assert journal.ids == [10, 11]


def test_end_token_counts_and_is_not_shown() -> None:
    journal = make()
    ids = shipped_tokenizer().encode_plain("ab")
    ordinary_stop_token = shipped_tokenizer().encode_plain("!")[0]
    journal.accept(delta(0, [*ids, ordinary_stop_token], finish_reason=FinishReason.STOP))
    assert drain(journal) == ("ab", [*ids, ordinary_stop_token])
    assert journal.accept(delta(3, [7])) == 0


def test_an_unfinished_character_is_shown_at_the_end() -> None:
    journal = make()
    first = shipped_tokenizer().encode_plain("\U0001f600")[:1]
    journal.accept(delta(0, first))
    assert drain(journal)[0] == ""
    journal.accept(delta(1, [], finish_reason=FinishReason.EXHAUSTED))
    assert journal.finish_reason == "length", "what clients know"
    assert drain(journal)[0] == "\ufffd"


def test_logprobs_end_with_the_token_that_completes_a_stop_string() -> None:
    ids = shipped_tokenizer().encode_plain("one two three")
    entries = [PositionLogprobs(TokenLogprob(i, -1.0, 1)) for i in ids]
    journal = make(" two")
    journal.accept(delta(0, ids, entries, FinishReason.LENGTH))
    chunk = journal.take()
    assert chunk is not None
    assert chunk.text == "one"
    assert len(chunk.entries) == len(chunk.token_ids) < len(ids)


def test_min_tokens_gates_stop_strings() -> None:
    ids = shipped_tokenizer().encode_plain("a a a a")
    journal = make(" a", min_tokens=3)
    journal.accept(delta(0, ids, finish_reason=FinishReason.LENGTH))
    assert len(journal.ids) == 3
