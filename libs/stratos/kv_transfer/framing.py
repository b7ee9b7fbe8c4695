"""Frames of a hand-off: how a token range is cut, how payloads are checked, what has arrived.

Pure arithmetic over ranges and bytes; moves no payload.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable

from stratos.core.kv import KvGeometry, KvRange


def plan_frames(token_begin: int, token_end: int, geometry: KvGeometry, slot_bytes: int) -> list[KvRange]:
    """Cut a token range into frames of at most ``slot_bytes``, in token order, then layer order.

    Cuts by tokens, at block boundaries where a whole block fits; by layers only when one token does not fit.

    Raises:
        ValueError: an empty or negative range, or a slot smaller than one token of one layer.
    """
    if not 0 <= token_begin < token_end:
        raise ValueError(f"no tokens in the range {token_begin}..{token_end}")
    layer_bytes = geometry.token_bytes // geometry.num_layers
    if slot_bytes < layer_bytes:
        raise ValueError(f"slot_bytes must be at least {layer_bytes} (one token of one layer), not {slot_bytes}")
    max_tokens = slot_bytes // geometry.token_bytes
    max_layers = geometry.num_layers if max_tokens else slot_bytes // layer_bytes
    frames: list[KvRange] = []
    begin = token_begin
    while begin < token_end:
        end = _frame_end(begin, token_end, max(1, max_tokens), geometry.block_size)
        for layer in range(0, geometry.num_layers, max_layers):
            frames.append(KvRange(begin, end, layer, min(geometry.num_layers, layer + max_layers)))
        begin = end
    return frames


def plan_state_frames(token_end: int, geometry: KvGeometry, slot_bytes: int) -> list[KvRange]:
    """Frames of the recurrent state after the last token, of at most ``slot_bytes``; none where the model has none.

    Raises:
        ValueError: a slot smaller than the state of one layer.
    """
    if not geometry.num_state_layers:
        return []
    step = slot_bytes // geometry.state_layer_bytes
    if not step:
        raise ValueError(
            f"slot_bytes must be at least {geometry.state_layer_bytes} (a layer's state), not {slot_bytes}"
        )
    first = geometry.num_layers
    end = first + geometry.num_state_layers
    return [KvRange(token_end - 1, token_end, layer, min(end, layer + step)) for layer in range(first, end, step)]


def _frame_end(begin: int, token_end: int, max_tokens: int, block_size: int) -> int:
    end = min(token_end, begin + max_tokens)
    aligned = end - end % block_size
    return aligned if begin < aligned and end < token_end else end


def checksum(payload: memoryview | bytes | bytearray) -> int:
    """First 8 bytes, little endian, of the SHA-256 of the payload."""
    return int.from_bytes(hashlib.sha256(payload).digest()[:8], "little")


def digest_of(checksums: Iterable[int]) -> bytes:
    """SHA-256 over the checksums of all frames in order, each as 8 bytes little endian."""
    return hashlib.sha256(b"".join(value.to_bytes(8, "little") for value in checksums)).digest()


class Coverage:
    """Which (token, layer) cells of one kv_group and rank have been scattered and verified.

    Args:
        token_begin: first token wanted (what the receiver had already ends here).
        token_end: one past the last; equal to ``token_begin`` means nothing is wanted.
        num_layers: layers of the group.
        num_state_layers: further ones, of which the state after the last token is wanted and nothing else.
    """

    def __init__(self, token_begin: int, token_end: int, num_layers: int, num_state_layers: int = 0) -> None:
        if not 0 <= token_begin <= token_end or num_layers < 1:
            raise ValueError(f"bad coverage: tokens {token_begin}..{token_end}, {num_layers} layers")
        self._begin = token_begin
        self._end = token_end
        self._num_layers = num_layers
        num_all = num_layers + (num_state_layers if token_end > token_begin else 0)
        self._layers: list[list[tuple[int, int]]] = [[] for _ in range(num_all)]
        self._missing = (token_end - token_begin) * num_layers + num_all - num_layers

    def add(self, frame: KvRange) -> None:
        """Mark a frame as there.

        Raises:
            ValueError: it is empty, outside of what is wanted, or overlaps what is there; nothing changes then.
        """
        if not self._is_inside(frame):
            raise ValueError(f"{frame} is outside of tokens {self._begin}..{self._end}, {len(self._layers)} layers")
        if not self.has_room(frame):
            raise ValueError(f"{frame} overlaps what has arrived")
        for spans in self._layers[frame.layer_begin : frame.layer_end]:
            _insert(spans, frame.token_begin, frame.token_end)
        self._missing -= frame.num_cells

    def has_room(self, frame: KvRange) -> bool:
        """``add`` would take it."""
        layers = self._layers[frame.layer_begin : frame.layer_end]
        return self._is_inside(frame) and not any(
            _overlaps(spans, frame.token_begin, frame.token_end) for spans in layers
        )

    def _is_inside(self, frame: KvRange) -> bool:
        if frame.layer_begin >= self._num_layers:
            is_end = (frame.token_begin, frame.token_end) == (self._end - 1, self._end)
            return is_end and frame.layer_begin < frame.layer_end <= len(self._layers)
        inside = self._begin <= frame.token_begin < frame.token_end <= self._end
        return inside and 0 <= frame.layer_begin < frame.layer_end <= self._num_layers

    @property
    def is_complete(self) -> bool:
        """Every token of every layer is there."""
        return self._missing == 0

    @property
    def verified_tokens(self) -> int:
        """Tokens ``[0, verified_tokens)`` are there in all layers; at least ``token_begin``: a resume skips to here.

        Where a state belongs to them it is that of the end: then all are there, or none.
        """
        if len(self._layers) > self._num_layers:
            return self._begin if self._missing else self._end
        return min(spans[0][1] if spans and spans[0][0] == self._begin else self._begin for spans in self._layers)


def _overlaps(spans: list[tuple[int, int]], begin: int, end: int) -> bool:
    at = bisect_left(spans, (begin, begin))
    return (at > 0 and spans[at - 1][1] > begin) or (at < len(spans) and spans[at][0] < end)


def _insert(spans: list[tuple[int, int]], begin: int, end: int) -> None:
    """Insert a span that overlaps none, joining it with neighbours that touch it."""
    at = bisect_left(spans, (begin, begin))
    if at > 0 and spans[at - 1][1] == begin:
        at -= 1
        begin = spans.pop(at)[0]
    if at < len(spans) and spans[at][0] == end:
        end = spans.pop(at)[1]
    spans.insert(at, (begin, end))
