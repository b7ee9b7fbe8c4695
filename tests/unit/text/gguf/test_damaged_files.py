"""Damaged GGUF files: one kind of error that begins with the file's name, no crash, no big allocation."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.parts import read_gguf
from stratos.text.gguf.folder import folder_contents
from tests.support.address_space import bounded_memory
from tests.support.examples import IS_THOROUGH
from tests.support.reference.gguf_files import sentence_piece_vocabulary, tiny_llama

NUM_FILES = 100_000 if IS_THOROUGH else 1_000
PARTS = range(10 if IS_THOROUGH else 1)
"""So that a part needs seconds: minutes of one test are over the limit of every test when a machine is crowded."""
MOST_S = 2.0
"""CPU time of one file; a sound one takes a thousandth of that."""
INTERESTING = (0, 1, 2, 7, 8, 9, 13, 0x7F, 0x80, 0xFF, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
VALID = {"byte pairs": tiny_llama(), "pieces": tiny_llama(sentence_piece_vocabulary(), "Q4_0")}


def damaged(content: bytes, header_size: int, source: random.Random) -> bytes:
    """Bits flipped, numbers replaced, pieces cut, doubled or moved; most of it where the header is."""
    changed = bytearray(content)
    for _ in range(source.randint(1, 4)):
        end = header_size if source.random() < 0.9 else len(changed)
        place = source.randrange(max(1, min(end, len(changed))))
        match source.randrange(6):
            case 0:
                changed[place : place + 1] = bytes([changed[place] ^ 1 << source.randrange(8)] if changed else [])
            case 1 | 2:
                size = source.choice((1, 4, 8))
                number = source.choice(INTERESTING) % 2 ** (8 * size)
                changed[place : place + size] = number.to_bytes(size, "little")
            case 3:
                del changed[place : place + source.choice((1, 4, 8, 32, 1 << 20))]
            case 4:
                changed[place:place] = changed[place : place + source.choice((1, 8, 24))]
            case 5:
                other = source.randrange(max(1, min(end, len(changed))))
                changed[place : place + 8] = changed[other : other + 8]
    return bytes(changed)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", VALID)
def test_only_one_kind_of_error_leaves_the_reader(tmp_path: Path, name: str, part: int) -> None:
    content, source, path = VALID[name], random.Random(f"{name} {part}"), tmp_path / "x.gguf"
    header_size, num_files = content.index(b"output_norm.weight") + 800, NUM_FILES // len(VALID) // len(PARTS)
    messages = []
    with bounded_memory():
        for _ in range(num_files):
            path.write_bytes(damaged(content, header_size, source))
            began = time.process_time()
            try:
                folder_contents(read_gguf(path))
            except InvalidCheckpoint as error:  # any other one fails the test, and the file is still there
                messages.append(error.message)
            assert time.process_time() - began < MOST_S
    assert len(messages) > num_files // 3
    assert max(map(len, messages)) < 1000, "a message does not repeat the file"


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", VALID)
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, name: str, part: int) -> None:
    content, path = VALID[name], tmp_path / "x.gguf"
    lengths = [*range(64), *range(64, len(content), 1 if IS_THOROUGH else 211)]
    for length in lengths[part :: len(PARTS)]:
        path.write_bytes(content[:length])
        with pytest.raises(InvalidCheckpoint, match=r"^x\.gguf"):
            read_gguf(path)
