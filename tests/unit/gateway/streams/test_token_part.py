"""Events of single tokens have the same bytes, and are recorded the same, whichever way they take."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from stratos_gateway.openai.answers import ChatRenderer, ChoicesRenderer, CompletionRenderer
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.openai.rendering import Answer
from stratos_gateway.streams.codec import decode_block
from stratos_gateway.streams.cursor import Cursor
from stratos_gateway.streams.numbering import NumberedRenderer
from stratos_gateway.streams.owned import OwnedStream, Ownership
from tests.support.reference.shipped_model import shipped_tokenizer

TEXTS = ["a", "b", "", "\u00e9\n", '"', "c"]


def answer(num_choices: int = 1, **fields: bool) -> Answer:
    known = {"return_token_ids": False, "include_usage": False} | fields
    return Answer(
        id="cmpl-1", created=1, model="base", num_logprobs=None, num_prompt_logprobs=None, echoes_logprobs=False,
        prompts=[[1]], num_choices=num_choices, **known,
    )  # fmt: skip


def owned(journal: Sequence[int] = ()) -> OwnedStream:
    stream = OwnedStream("t", "s", Ownership(number=9), 1, lambda error: None)
    stream.num_cached, stream.ids = lambda: [0], lambda: journal
    return stream


def chunk(token_id: int, text: str, choice: int = 0) -> ChoiceChunk:
    return ChoiceChunk(choice, text, [token_id], [], None, is_first=token_id == 0)


@pytest.mark.parametrize("kind", [ChatRenderer, CompletionRenderer])
@pytest.mark.parametrize("is_numbered", [False, True])
@pytest.mark.parametrize("fields", [{}, {"include_usage": True}])
def test_a_token_and_a_chunk_give_the_same_bytes(
    kind: type[ChoicesRenderer], fields: dict[str, bool], *, is_numbered: bool
) -> None:
    chunks, tokens = (kind(answer(**fields), shipped_tokenizer()) for _ in range(2))
    journal: list[int] = []
    records = owned(), owned(journal)
    if is_numbered:
        chunks, tokens = (NumberedRenderer(inner, "a" * 12, 1) for inner in (chunks, tokens))  # type: ignore[assignment]
        chunks.recorder, tokens.recorder = records  # type: ignore[attr-defined]
    expected = [chunks.stream_part([chunk(number, text)]) for number, text in enumerate(TEXTS)]
    found, num_short = [], 0
    for number, text in enumerate(TEXTS):
        part = tokens.token_part(number, text) if number else None
        num_short += part is not None
        found.append(tokens.stream_part([chunk(number, text)]) if part is None else part)
        journal.append(number)
    assert found == expected
    assert num_short == len(TEXTS) - 2, "all but the first two, of which the second shows what differs"
    if is_numbered:
        written = [decode_block(stream.write().content, 1, 1).pieces for stream in records]
        assert written[0] == written[1]


@pytest.mark.parametrize("long_way", [set(range(40)), {0, 1}, {0, 1, 7, 8, 20}, {0, 1, 39}])
def test_tokens_are_recorded_and_numbered_the_same_whichever_way_each_of_them_takes(long_way: set[int]) -> None:
    """Also where the answer goes on from another one's journal, and where its blocks are written in between."""
    journal, parts = [77, 78], []
    stream, renderer = owned(journal), NumberedRenderer(CompletionRenderer(answer(), shipped_tokenizer()), "a" * 12, 1)
    renderer.recorder = stream
    for number in range(40):
        text = "" if number % 9 == 5 else "b"
        if number in long_way:
            journal.append(number)
            parts.append(renderer.stream_part([chunk(number, text)]))
        else:
            part = renderer.token_part(number, text)
            assert part is not None
            journal.append(number)
            parts.append(part)
        if number == 15:
            stream.write()
            stream.note_written(stream.num_bytes)
    pieces = decode_block(stream.write().content, 1, 1).pieces
    assert [list(piece.ids) for piece in pieces] == [[number] for number in range(40)]
    words = array("I", stream.words)
    assert list(words) == [word for number in range(16, 40) for word in (9, number, number)], "with the first block"
    numbers = [number for number in range(40) if number % 9 != 5]
    assert ids(b"".join(parts)) == [b"%d.%d" % (event, number + 1) for event, number in enumerate(numbers, 1)]


def test_a_stream_that_is_lost_is_noted_no_more_and_its_events_count_on() -> None:
    journal = [0, 1]
    stream, renderer = owned(journal), NumberedRenderer(CompletionRenderer(answer(), shipped_tokenizer()), "a" * 12, 1)
    renderer.recorder = stream
    for number in range(2):
        renderer.stream_part([chunk(number, "a")])
    stream.write()
    stream.note_written(stream.num_bytes)
    told = []
    for number in range(2, 6):
        if number == 4:
            stream.lose()
        told.append(renderer.token_part(number, "b") or b"")
        journal.append(number)
    assert list(array("I", stream.words))[1::3] == [2, 3]
    assert not stream.is_due
    told.append(renderer.stream_part([chunk(6, "b")]))
    assert ids(b"".join(told)) == [b"%d.%d" % (number, number) for number in range(3, 8)]


def test_ids_count_on_however_long_a_stream_is() -> None:
    renderer = NumberedRenderer(CompletionRenderer(answer(), shipped_tokenizer()), "a" * 12, 1)
    for number in range(2):
        renderer.stream_part([chunk(number, "a")])
    last = [renderer.token_part(7, "" if number == 5 else "b") for number in range(2, 4100)][-1]
    assert last is not None
    assert last.startswith(b"id: aaaaaaaaaaaa.4099.4100\ndata: {")


@pytest.mark.parametrize("field", ["return_token_ids", "continuous_usage"])
def test_what_tells_more_than_text_is_told_by_chunks(field: str) -> None:
    renderer = CompletionRenderer(answer(**{field: True}), shipped_tokenizer())
    for number, text in enumerate(TEXTS):
        assert renderer.token_part(number, text) is None
        renderer.stream_part([chunk(number, text)])


def test_a_client_that_comes_back_gets_chunks_until_all_is_new_to_it() -> None:
    inner = CompletionRenderer(answer(), shipped_tokenizer())
    renderer = NumberedRenderer(inner, "a" * 12, 1, Cursor(num_events=2, seen=(2,)))
    found = []
    for number, text in enumerate("abcd"):
        part = renderer.token_part(number, text)
        found.append((part is None, renderer.stream_part([chunk(number, text)]) if part is None else part))
    assert [is_long for is_long, _ in found] == [True, True, True, False]
    assert [part.count(b"data:") for _, part in found] == [0, 0, 1, 1]
    assert b"id: aaaaaaaaaaaa.4.4\n" in found[3][1]


def test_the_id_of_a_new_event_has_what_the_client_knows_of_choices_that_are_still_to_come() -> None:
    """They come later at another gateway; who leaves in between would be told them once more."""
    inner = CompletionRenderer(answer(2), shipped_tokenizer())
    renderer = NumberedRenderer(inner, "a" * 12, 2, Cursor(num_events=5, seen=(3, 2)))
    told = b"".join(renderer.stream_part([chunk(number, "b", 1)]) for number in range(4))
    assert ids(told) == [b"6.3-3", b"7.3-4"]
    told = b"".join(renderer.stream_part([chunk(number, "a")]) for number in range(4))
    assert ids(told) == [b"8.4-4"]


class TwoEvents(CompletionRenderer):
    """Every chunk is two events."""

    def stream_part(self, chunks: Sequence[ChoiceChunk]) -> bytes:
        return b"".join(super(TwoEvents, self).stream_part(chunks) for _ in range(2))


def test_the_id_of_a_new_event_has_the_part_of_a_chunk_that_the_client_has_of_another_choice() -> None:
    """Who leaves before that chunk comes would be told the part once more."""
    cursor = Cursor(num_events=5, seen=(1, 1), part=(0, 1, 1))
    renderer = NumberedRenderer(TwoEvents(answer(2), shipped_tokenizer()), "a" * 12, 2, cursor)
    told = b"".join(renderer.stream_part([chunk(number, "b", 1)]) for number in range(2))
    assert ids(told) == [b"6.1-1.1-1-1", b"7.1-2.0-1-1"], "within a chunk it has the place in that one"
    told = b"".join(renderer.stream_part([chunk(number, "a")]) for number in range(2))
    assert ids(told) == [b"8.2-2"], "the second event of the chunk"


def ids(told: bytes) -> list[bytes]:
    return [line.removeprefix(b"id: aaaaaaaaaaaa.") for line in told.splitlines() if line.startswith(b"id: ")]
