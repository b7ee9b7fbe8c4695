"""Segments of the ledger: what was written is read again, and whatever was done to it since then is found."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.core.ledger.entry import LedgerEntry, entry_to_text
from stratos.core.ledger.pricing import Amounts
from stratos.core.ledger.segments import (
    BLOCK_LINES,
    BrokenSegment,
    SegmentLine,
    SegmentRef,
    SegmentWriter,
    parse_ref,
    read_block,
    read_index,
)
from tests.support.worlds.usage_counts import ENTRY, TAG


def entry(number: int, gross: int = 100) -> LedgerEntry:
    return replace(ENTRY, request_id=f"gen-{number:05}", amounts=Amounts(gross=gross))


def line(number: int, tenant: str = "acme", *, corrects: LedgerEntry | None = None, gross: int = 100) -> SegmentLine:
    found = entry(number, gross)
    old = ("", -1) if corrects is None else (entry_to_text(corrects), 0)
    return SegmentLine(TAG.arrived_unix_ms + number, found.request_id, tenant, entry_to_text(found), *old)


def segment(lines: list[SegmentLine], previous: SegmentRef | None = None) -> tuple[SegmentRef, bytes]:
    file = io.BytesIO()
    writer = SegmentWriter(file, previous)
    writer.add(lines)
    return writer.end(), file.getvalue()


def read(ref: SegmentRef, data: bytes) -> list[SegmentLine]:
    index = read_index(ref, data[ref.num_bytes - ref.index_bytes : ref.num_bytes])
    parts = (read_block(block, data[block.offset : block.offset + block.num_bytes]) for block in index.blocks)
    return [line for part in parts for line in part]


LINES = [line(number) for number in range(BLOCK_LINES + 3)] + [line(1, "bravo"), line(9, "bravo")]
FIRST, DATA = segment(LINES)


def test_lines_are_read_as_they_were_written_and_in_blocks_of_one_tenant() -> None:
    assert read(FIRST, DATA) == LINES
    index = read_index(FIRST, DATA[-FIRST.index_bytes :])
    assert [(block.tenant, block.num_lines) for block in index.blocks] == [
        ("acme", BLOCK_LINES), ("acme", 3), ("bravo", 2),
    ]  # fmt: skip
    assert (index.num_lines, index.previous, index.days) == (len(LINES), None, (ENTRY.day,))
    assert (index.blocks[2].first_ms, index.blocks[2].last_ms) == (TAG.arrived_unix_ms + 1, TAG.arrived_unix_ms + 9)
    assert len(gzip.decompress(DATA).splitlines()) == len(LINES) + 1, "any program unpacks it"


def test_the_same_entries_make_the_same_segment_and_others_another_one() -> None:
    assert segment(LINES) == (FIRST, DATA)
    other, _ = segment(LINES[:-1])
    assert (other.number, other.key != FIRST.key) == (0, True)
    second, data = segment(LINES, FIRST)
    assert second.number == 1
    assert read_index(second, data[-second.index_bytes :]).previous == FIRST
    assert parse_ref(FIRST.text) == FIRST


def test_a_correction_counts_the_difference() -> None:
    made = line(2, corrects=entry(2), gross=70)
    ref, data = segment([made])
    (found,) = read(ref, data)
    assert found == made
    assert {name: value for name, value in found.measures.items() if value} == {"gross": -30}


@given(place=st.integers(0, len(DATA) - 1), flip=st.integers(1, 255))
def test_any_altered_byte_is_found(place: int, flip: int) -> None:
    data = bytearray(DATA)
    data[place] ^= flip
    with pytest.raises(BrokenSegment):
        read(FIRST, bytes(data))


@given(length=st.integers(0, len(DATA) - 1))
def test_a_segment_that_ends_early_is_broken(length: int) -> None:
    with pytest.raises(BrokenSegment):
        read(FIRST, DATA[:length])


@pytest.mark.parametrize("text", ["", "1 abc", "x abc 1 2"])
def test_what_is_no_name_of_a_segment_is_refused(text: str) -> None:
    with pytest.raises(BrokenSegment):
        parse_ref(text)
