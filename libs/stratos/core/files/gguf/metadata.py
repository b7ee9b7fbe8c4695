"""Keys and values at the beginning of a GGUF file, read with their types and asked for with a check of them."""

from __future__ import annotations

import math
import reprlib
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.header_bytes import HeaderBytes

MAX_KEYS = 65536
MAX_ITEMS = 2**22
"""Items of one array; the largest vocabularies of published models have a sixteenth of it."""
MAX_COUNT = 2**31 - 1
_BOOL, _TEXT, _ARRAY = 7, 8, 9
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_LAYOUTS = {type_id: struct.Struct(f"<{code}") for type_id, code in _CODES.items()}
"""``gguf_metadata_value_type`` -> a number; text is 8, an array 9."""


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    """Values by key."""

    file_name: str
    values: dict[str, Any]

    def __contains__(self, key: object) -> bool:
        return key in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def text(self, key: str, default: str | None = None) -> str:
        """A text; ``default`` where the key is not there."""
        value = self.values.get(key, default)
        return value if isinstance(value, str) else self._refuse(key, "a text", value)

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer in [``least``, ``MAX_COUNT``]."""
        value = self.values.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_COUNT:
            return value
        self._refuse(key, f"an integer from {least} to {MAX_COUNT}", value)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; one of 32 bits becomes the shortest decimal that stands for it."""
        value = self.values.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return _shortest(float(value))
        self._refuse(key, "a finite number", value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self.values.get(key, default)
        return value if isinstance(value, bool) else self._refuse(key, "true or false", value)

    def texts(self, key: str) -> tuple[str, ...]:
        """An array of texts."""
        value = self.values.get(key)
        return value if isinstance(value, tuple) else self._refuse(key, "an array of texts", value)

    def numbers(self, key: str, codes: str) -> Sequence[Any]:
        """An array of numbers; ``codes``: letters of ``array`` that are let through."""
        value = self.values.get(key)
        if not isinstance(value, array) or value.typecode not in codes:
            self._refuse(key, "an array of numbers", value)
        return value

    def _refuse(self, key: str, wanted: str, found: Any) -> NoReturn:
        state = "is missing" if found is None else f"must be {wanted}, not {reprlib.repr(found)}"
        raise InvalidCheckpoint(f"{self.file_name}: {key} {state}")


def read_metadata(header: HeaderBytes, num_keys: int) -> GgufMetadata:
    """Read all keys.

    Raises:
        InvalidCheckpoint: too many, one appears twice, or a value of a type that is not known.
    """
    if num_keys > MAX_KEYS:
        raise InvalidCheckpoint(f"{header.name}: its header counts {num_keys} keys; at most {MAX_KEYS} are read")
    values: dict[str, Any] = {}
    for _ in range(num_keys):
        key = header.text("a key")
        if key in values:
            raise InvalidCheckpoint(f"{header.name}: the key {reprlib.repr(key)} appears twice: which one is meant?")
        values[key] = _value(header, key, header.u32())
    return GgufMetadata(header.name, values)


def _value(header: HeaderBytes, key: str, type_id: int) -> Any:
    if type_id == _TEXT:
        return header.text(reprlib.repr(key))
    if type_id == _ARRAY:
        return _items(header, key, header.u32(), header.u64())
    if type_id not in _LAYOUTS:
        raise InvalidCheckpoint(f"{header.name}: {reprlib.repr(key)} has the unknown type {type_id}")
    value = header.number(_LAYOUTS[type_id])
    if type_id != _BOOL:
        return value
    if value not in (0, 1):
        raise InvalidCheckpoint(f"{header.name}: {reprlib.repr(key)} is neither true nor false")
    return value == 1


def _items(header: HeaderBytes, key: str, type_id: int, count: int) -> tuple[str, ...] | array[Any]:
    if count > MAX_ITEMS:
        raise InvalidCheckpoint(f"{header.name}: {reprlib.repr(key)} has {count} items; at most {MAX_ITEMS} are read")
    if type_id == _TEXT:
        if 8 * count > header.left:  # before a long loop: each has a length of 8 bytes
            raise InvalidCheckpoint(f"{header.name} is truncated: {reprlib.repr(key)} goes on after its end")
        return tuple(header.text(reprlib.repr(key)) for _ in range(count))
    if type_id not in _LAYOUTS:
        raise InvalidCheckpoint(f"{header.name}: {reprlib.repr(key)} is an array of the unknown type {type_id}")
    layout = _LAYOUTS[type_id]
    return array(_CODES[type_id], header.take(count * layout.size))


def _shortest(value: float) -> float:
    """The shortest decimal that rounds to the same float32: 1e-05, where the file has 9.999999747378752e-06."""
    if abs(value) > 3e38:
        return value
    exact = struct.pack("<f", value)
    if struct.unpack("<f", exact)[0] != value:
        return value  # a number of 64 bits
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next((float(text) for text in texts if struct.pack("<f", float(text)) == exact), value)
