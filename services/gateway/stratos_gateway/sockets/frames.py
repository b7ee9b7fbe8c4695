"""Frames of RFC 6455 as a server reads and writes them, without a socket: no extensions, texts alone.

A frame is refused by its head: no byte of what is too long is kept.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha1

MAX_CONTROL_BYTES = 125
MAX_FRAMES_AT_ONCE = 2048
"""Frames of one read, a few us each; a read has 256 KiB at most."""
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED, NOT_UTF8 = 1000, 1001, 1002, 1003, 1007
POLICY, TOO_LARGE, INTERNAL_ERROR, SERVICE_RESTART, TRY_AGAIN_LATER = 1008, 1009, 1011, 1012, 1013


@dataclass(frozen=True, slots=True)
class Control:
    """A control frame."""

    kind: int
    payload: bytes


class FrameFault(Exception):
    """The peer breaks the protocol, or a bound.

    Args:
        code: that the connection is closed with.
        reason: the same in words.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def accept_key(key: bytes) -> bytes:
    """Answer to the client's ``Sec-WebSocket-Key``."""
    return b64encode(sha1(key + _GUID, usedforsecurity=False).digest())


def encode_frame(kind: int, payload: bytes) -> bytes:
    """One whole frame of a server, which is not masked."""
    length = len(payload)
    if length <= MAX_CONTROL_BYTES:
        head = struct.pack("!BB", 0x80 | kind, length)
    elif length < 1 << 16:
        head = struct.pack("!BBH", 0x80 | kind, 126, length)
    else:
        head = struct.pack("!BBQ", 0x80 | kind, 127, length)
    return head + payload


def close_payload(code: int, reason: str) -> bytes:
    """Payload of a close frame."""
    return struct.pack("!H", code) + reason.encode()[: MAX_CONTROL_BYTES - 2]


class FrameReader:
    """Bytes of a client to texts and control frames.

    Args:
        max_bytes: of a message, over all of its frames.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._message: bytearray | None = None
        """What has come of a message; ``None`` between two."""

    @property
    def is_between(self) -> bool:
        """Nothing of a message or frame is here that the rest is missing of."""
        return self._message is None and not self._buffer

    def feed(self, data: bytes) -> list[str | Control]:
        """Messages and control frames that are complete.

        Raises:
            FrameFault: the connection is to be closed.
        """
        self._buffer += data
        found: list[str | Control] = []
        for _ in range(MAX_FRAMES_AT_ONCE):
            if (frame := self._next()) is None:
                return found
            if (complete := self._take(*frame)) is not None:
                found.append(complete)
        raise FrameFault(POLICY, "too many small frames")

    def _next(self) -> tuple[int, bool, bytes] | None:
        """Kind, whether it is the last of its message, and payload of the next frame."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        kind, is_last, length, begin = buffer[0] & 0x0F, bool(buffer[0] & 0x80), buffer[1] & 0x7F, 2
        if buffer[0] & 0x70 or kind not in (_CONTINUED, TEXT, BINARY, CLOSE, PING, PONG):
            raise FrameFault(PROTOCOL_ERROR, "a frame of an unknown kind")
        if not buffer[1] & 0x80:
            raise FrameFault(PROTOCOL_ERROR, "frames of a client must be masked")
        if length > MAX_CONTROL_BYTES:
            begin = 4 if length == 126 else 10
            if len(buffer) < begin:
                return None
            length = int.from_bytes(buffer[2:begin], "big")
        self._check(kind, length, is_last=is_last)
        if len(buffer) < begin + 4 + length:
            return None
        payload = _unmasked(bytes(buffer[begin + 4 : begin + 4 + length]), bytes(buffer[begin : begin + 4]))
        del buffer[: begin + 4 + length]
        return kind, is_last, payload

    def _check(self, kind: int, length: int, *, is_last: bool) -> None:
        if kind >= CLOSE:
            if length > MAX_CONTROL_BYTES or not is_last:
                raise FrameFault(PROTOCOL_ERROR, "a control frame must be short and whole")
            return
        if kind == BINARY:
            raise FrameFault(UNSUPPORTED, "messages must be texts")
        if (kind == _CONTINUED) == (self._message is None):
            raise FrameFault(PROTOCOL_ERROR, "a frame out of its order")
        if length + len(self._message or b"") > self._max_bytes:
            raise FrameFault(TOO_LARGE, f"a message is larger than {self._max_bytes} bytes")

    def _take(self, kind: int, is_last: bool, payload: bytes) -> str | Control | None:
        if kind >= CLOSE:
            return Control(kind, payload)
        if self._message is None:
            self._message = bytearray()
        self._message += payload
        if not is_last:
            return None
        whole, self._message = bytes(self._message), None
        try:
            return whole.decode()
        except UnicodeDecodeError:
            raise FrameFault(NOT_UTF8, "a text must be UTF-8") from None


def _unmasked(payload: bytes, key: bytes) -> bytes:
    size = len(payload)
    mask = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")
