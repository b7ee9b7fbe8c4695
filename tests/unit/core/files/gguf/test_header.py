"""Headers of GGUF files: what is read, and what is refused by the name of the key or the tensor."""

from __future__ import annotations

import struct
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.header import read_gguf_header
from stratos.core.files.gguf.header_bytes import MAX_HEADER_BYTES
from stratos.core.files.gguf.metadata import MAX_ITEMS
from stratos.core.files.gguf.parts import model_stem, read_gguf
from tests.support.reference.gguf_files import LLAMA, gguf_bytes, llama_tensors, text, tiny_llama, value, write, zeros

VALUES: dict[str, Any] = {
    "a.text": "größe",
    "a.flag": True,
    "a.count": 7,
    "a.number": 1e-5,
    "some.texts": ["x", "", "▁the"],
    "some.numbers": [0.5, -2.0],
    "some.counts": [1, 2, 3],
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 8, 4096])
def test_values_and_places_are_those_that_were_written(tmp_path: Path, version: int, alignment: int) -> None:
    tensors = {"one": zeros(3), "two": zeros(2, 64, kind="Q8_0"), "three": zeros(5, 256, kind="Q6_K")}
    tensors["two"] = replace(tensors["two"], content=bytes(range(136)))
    content = gguf_bytes(VALUES, tensors, alignment=alignment, version=version)
    found = read_gguf_header(write(tmp_path / "x.gguf", content))
    metadata = found.metadata
    assert metadata.text("a.text") == "größe"
    assert metadata.flag("a.flag", False) is True
    assert metadata.count("a.count") == 7
    assert metadata.number("a.number") == 1e-5  # and not 9.999999747378752e-06
    assert metadata.texts("some.texts") == ("x", "", "▁the")
    assert metadata.numbers("some.numbers", "f") == array("f", [0.5, -2.0])
    assert list(metadata.numbers("some.counts", "iI")) == [1, 2, 3]
    assert {name: (info.shape, info.block_type.name) for name, info in found.tensors.items()} == {
        "one": ((3,), "F32"),
        "two": ((2, 64), "Q8_0"),
        "three": ((5, 256), "Q6_K"),
    }
    two = found.tensors["two"]
    assert content[two.begin : two.begin + two.num_bytes] == bytes(range(136))
    assert two.begin % alignment == 0


@pytest.mark.parametrize(
    ("item", "value_written"), [(3.4e38, 3.4e38), (0.1, 0.1), (-12345.678, -12345.678), (16777216.0, 16777216.0)]
)
def test_a_number_of_32_bits_is_the_shortest_decimal(tmp_path: Path, item: float, value_written: float) -> None:
    path = write(tmp_path / "x.gguf", gguf_bytes({"n": item}, {"t": zeros(1)}))
    found = read_gguf_header(path).metadata.number("n")
    assert struct.pack("<f", found) == struct.pack("<f", value_written)
    assert len(repr(found)) <= max(len(repr(value_written)), 12) or abs(item) > 3e38


def header(num_tensors: int = 0, num_keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_keys) + rest


def tensor_entry(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def one_tensor(entry: bytes, data: int = 64) -> bytes:
    content = header(1, 0, entry)
    return content + bytes(-len(content) % 32) + bytes(data)


BROKEN: list[tuple[str, bytes, str]] = [
    ("empty", b"", "does not begin with GGUF"),
    ("magic", b"GGML" + bytes(60), "does not begin with GGUF"),
    ("version 1", b"GGUF" + struct.pack("<I", 1) + bytes(60), "version 1 is not supported"),
    ("big-endian", b"GGUF" + struct.pack(">I", 3) + bytes(60), "it is big-endian"),
    ("half a header", header()[:20], "truncated"),
    ("many tensors", header(2**60), "counts 1152921504606846976 tensors"),
    ("many keys", header(0, 2**60), "counts 1152921504606846976 keys"),
    ("a long key", header(0, 1, struct.pack("<Q", 2**63)), "truncated"),
    ("a key in no UTF-8", header(0, 1, struct.pack("<Q", 2) + b"\xff\xfe" + value(1)), "no UTF-8"),
    ("a key twice", header(0, 2, (text("k") + value(1)) * 2), "'k' appears twice"),
    ("an unknown type", header(0, 1, text("k") + struct.pack("<I", 13)), "'k' has the unknown type 13"),
    ("neither true nor false", header(0, 1, text("k") + struct.pack("<IB", 7, 2)), "neither true nor false"),
    ("an array of arrays", header(0, 1, text("k") + struct.pack("<IIQ", 9, 9, 1)), "array of the unknown type 9"),
    ("a huge array", header(0, 1, text("k") + struct.pack("<IIQ", 9, 0, 2**62)), f"at most {MAX_ITEMS}"),
    ("many empty texts", header(0, 1, text("k") + struct.pack("<IIQ", 9, 8, MAX_ITEMS)), "truncated"),
    ("cut numbers", header(0, 1, text("k") + struct.pack("<IIQ", 9, 4, 9) + bytes(8)), "truncated"),
    ("a tensor without a name", one_tensor(tensor_entry("", (1,))), "name of 0 characters"),
    ("no extents", one_tensor(tensor_entry("t", ())), "'t' has 0 extents"),
    ("five extents", one_tensor(tensor_entry("t", (1,) * 5)), "'t' has 5 extents"),
    ("an empty extent", one_tensor(tensor_entry("t", (4, 0))), r"'t' has the shape \[0, 4\]"),
    ("a part of a block", one_tensor(tensor_entry("t", (33,), 8)), "blocks of Q8_0 do not fill"),
    ("extents whose product overflows", one_tensor(tensor_entry("t", (2**33, 2**33))), "'t' ends at byte"),
    ("an IQ type", one_tensor(tensor_entry("t", (256,), 16)), "'t' has blocks of type IQ2_XXS; supported: F32"),
    ("an unknown block", one_tensor(tensor_entry("t", (256,), 99)), "'t' has blocks of type number 99"),
    ("an offset beyond the file", one_tensor(tensor_entry("t", (4,), 0, 2**50)), "'t' begins at 1125899906842624"),
    ("a hole", one_tensor(tensor_entry("t", (4,), 0, 32)), "'t' begins at 32 and not at 0"),
    ("bytes at the end", one_tensor(tensor_entry("t", (4,)), 96), "64 bytes after its last tensor"),
    ("a cut tensor", one_tensor(tensor_entry("t", (4, 4)), 63), "'t' ends at byte .* truncated"),
]


@pytest.mark.parametrize(("content", "message"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_broken_file_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=message) as refused:
        read_gguf_header(write(tmp_path / "x.gguf", content))
    assert refused.value.message.startswith("x.gguf")
    assert len(refused.value.message) < 500


def test_tensors_that_overlap_or_are_there_twice_are_refused(tmp_path: Path) -> None:
    entries = tensor_entry("a", (16,)), tensor_entry("b", (16,), 0, 32)
    content = header(2, 0, b"".join(entries))
    path = write(tmp_path / "x.gguf", content + bytes(-len(content) % 32) + bytes(96))
    with pytest.raises(InvalidCheckpoint, match="'b' begins at 32 and not at 64: tensors overlap"):
        read_gguf_header(path)
    content = header(2, 0, tensor_entry("a", (16,)) * 2)
    write(path, content + bytes(-len(content) % 32) + bytes(128))
    with pytest.raises(InvalidCheckpoint, match="'a' appears twice"):
        read_gguf_header(path)


@pytest.mark.parametrize("alignment", [0, 1, 24, 2**20])
def test_an_alignment_that_is_none_is_refused(tmp_path: Path, alignment: int) -> None:
    content = gguf_bytes({"general.alignment": alignment}, {"t": zeros(1)})
    with pytest.raises(InvalidCheckpoint, match=r"general\.alignment"):
        read_gguf_header(write(tmp_path / "x.gguf", content))


def test_a_header_is_bounded_whatever_the_file_has(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", header(0, 1, struct.pack("<Q", 2**29)))
    with path.open("r+b") as file:
        file.truncate(2**30)  # no byte of it is stored
    with pytest.raises(InvalidCheckpoint, match=f"more than {MAX_HEADER_BYTES} bytes"):
        read_gguf_header(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.gguf"):
        with pytest.raises(InvalidCheckpoint, match="is not a file"):
            read_gguf_header(path)


def split(folder: Path, count: int = 3) -> Path:
    """Write a model in parts; returns the first."""
    tensors = list(llama_tensors(264).items())
    for number in range(count):
        keys: dict[str, Any] = {"split.no": number, "split.count": count, "split.tensors.count": len(tensors)}
        keys |= {} if number else LLAMA
        write(folder / f"m-{number + 1:05d}-of-{count:05d}.gguf", gguf_bytes(keys, dict(tensors[number::count])))
    return folder / f"m-00001-of-{count:05d}.gguf"


def test_the_parts_of_a_model_are_one(tmp_path: Path) -> None:
    model = read_gguf(split(tmp_path))
    assert set(model.tensors) == set(llama_tensors(264))
    assert len({info.path for info in model.tensors.values()}) == 3
    assert model.architecture == "llama"
    assert model.block_names == ("F16", "F32", "Q8_0")
    assert model_stem(model.files[0].path) == "m"
    assert model_stem(tmp_path / "tiny-Q4_K_M.gguf") == "tiny-Q4_K_M"


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first = split(tmp_path)
    second = tmp_path / "m-00002-of-00003.gguf"
    with pytest.raises(InvalidCheckpoint, match="give the first one, NAME-00001-of-00003"):
        read_gguf(second)
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(InvalidCheckpoint, match=r"m-00002-of-00003\.gguf is not a file"):
        read_gguf(first)
    write(second, first.read_bytes())
    with pytest.raises(InvalidCheckpoint, match="says that it is part 1 of 3, and not 2 of 3"):
        read_gguf(first)
    write(second, content)
    renamed = first.rename(tmp_path / "other.gguf")
    with pytest.raises(InvalidCheckpoint, match="is a part of a model of 3"):
        read_gguf(renamed)


def test_a_number_of_tensors_that_is_not_there_is_refused(tmp_path: Path) -> None:
    keys = {**LLAMA, "split.tensors.count": 99}
    with pytest.raises(InvalidCheckpoint, match="99 tensors are announced, 11 are there"):
        read_gguf(write(tmp_path / "x.gguf", gguf_bytes(keys, llama_tensors(264))))
    with pytest.raises(InvalidCheckpoint, match="0 tensors are announced"):
        read_gguf(write(tmp_path / "x.gguf", gguf_bytes(LLAMA, {})))
    first = split(tmp_path)
    part = gguf_bytes({"split.no": 1, "split.count": 3}, {"token_embd.weight": zeros(4)})
    write(tmp_path / "m-00002-of-00003.gguf", part)
    with pytest.raises(InvalidCheckpoint, match="in both"):
        read_gguf(first)


def test_a_whole_small_file_is_read(tmp_path: Path) -> None:
    assert read_gguf(write(tmp_path / "x.gguf", tiny_llama())).tensors.keys() == llama_tensors(264).keys()
