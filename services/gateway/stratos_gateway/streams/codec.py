"""A stream's record as bytes: the head once, then tokens in blocks, with the pieces in which the client was sent them.

A piece is its choice (left out where there is one alone), the number of its tokens with a mark for the end, their ids,
and why the worker ended it; all numbers are LEB128, so a token of a vocabulary below 2^21 takes up to 3 bytes and a
piece one more.  Where log probabilities were asked for, each token's follow its piece, as the float32 that workers
send, and so do those of the prompt, which its first piece has.  A block begins with the cached tokens of each prompt,
and the second in which a choice first ended.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import orjson

from stratos.common.leb128 import add_number, read_number
from stratos.core.adapter import AdapterRef
from stratos.core.placement import Placement, WorkerRef, WorkerRole
from stratos.core.requests.records import FinishReason, PositionLogprobs, TokenLogprob
from stratos_gateway.openai.rendering import AnswerIdentity

_FORMAT = 1
_FLOAT = struct.Struct("<f")
_CAUSES: tuple[FinishReason | None, ...] = (
    None, FinishReason.STOP, FinishReason.LENGTH, FinishReason.GRAMMAR, FinishReason.EXHAUSTED,
)  # fmt: skip
"""By their number in a record, which never changes; ``None`` is a stop string, which is found again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHead:
    """Facts that are known before the first token."""

    path: str
    """Path of the route."""
    body: bytes
    """JSON of the request."""
    identity: AnswerIdentity
    tenant_name: str = ""
    """Whose it is, for gateways that go on with it without a client."""
    key_id: str = ""
    """Key that asked."""


@dataclass(frozen=True, slots=True)
class Piece:
    """News of one choice, as one chunk."""

    choice: int
    """Over all prompts."""
    ids: Sequence[int]
    ends: bool = False
    cause: FinishReason | None = None
    logprobs: Sequence[PositionLogprobs] = ()
    """One per token, fewer where its choice was ended from outside."""
    prompt: Sequence[PositionLogprobs] = ()
    """Log probabilities of the prompt's tokens, with its first piece."""


@dataclass(frozen=True, slots=True)
class RecordedBlock:
    """A block, as it was written last."""

    num_cached: tuple[int, ...]
    """Tokens of each prompt."""
    ended_unix_s: int
    pieces: Sequence[Piece]


def encode_head(head: StreamHead) -> bytes:
    """A head, packed."""
    own = head.identity
    value = {
        "format": _FORMAT,
        "path": head.path,
        "body": head.body.decode(),
        "id": own.answer_id,
        "created": own.created,
        "seed": own.seed,
        "prompts": own.prompts,
        "model": own.model_digest,
        "adapter": [own.adapter.digest, own.adapter.uri],
        "arrived": own.arrived_unix_ms,
        "requests": own.request_ids,
        "by": [head.tenant_name, head.key_id],
    }
    return zlib.compress(orjson.dumps(value), 1)


def decode_head(content: bytes) -> StreamHead | None:
    """The way back; ``None`` for what another version wrote, or nothing."""
    try:
        value = orjson.loads(zlib.decompress(content)) if content else {}
    except (zlib.error, orjson.JSONDecodeError):
        return None
    if value.get("format") != _FORMAT:
        return None
    digest, uri = value["adapter"]
    identity = AnswerIdentity(
        answer_id=value["id"],
        created=value["created"],
        seed=value["seed"],
        prompts=tuple(map(tuple, value["prompts"])),
        model_digest=value["model"],
        adapter=AdapterRef(digest=digest, uri=uri),
        arrived_unix_ms=value["arrived"],
        request_ids=tuple(value["requests"]),
    )
    tenant_name, key_id = value.get("by", ("", ""))
    return StreamHead(
        path=value["path"], body=value["body"].encode(), identity=identity, tenant_name=tenant_name, key_id=key_id
    )


def add_piece(
    buffer: bytearray, piece: Piece, num_choices: int, *, has_logprobs: bool = False, has_prompt: bool = False
) -> None:
    """Append a piece to those of its block; which log probabilities it has is the same for all of a record."""
    if num_choices > 1:
        add_number(buffer, piece.choice)
    add_number(buffer, 2 * len(piece.ids) + piece.ends)
    for token_id in piece.ids:
        add_number(buffer, token_id)
    if piece.ends:
        buffer.append(_CAUSES.index(piece.cause))
    if has_logprobs:
        _add_positions(buffer, piece.logprobs)
    if has_prompt:
        _add_positions(buffer, piece.prompt)


def _add_positions(buffer: bytearray, positions: Sequence[PositionLogprobs]) -> None:
    add_number(buffer, len(positions))
    for position in positions:
        add_number(buffer, len(position.top))
        for token in (position.sampled, *position.top):
            add_number(buffer, token.token_id)
            add_number(buffer, token.rank)
            buffer += _FLOAT.pack(token.logprob)


def add_tokens(buffer: bytearray, token_ids: Sequence[int]) -> None:
    """Append pieces as nearly all are: each one token of a request's one choice, which goes on.

    All at once, as one number with a lane of 32 bits for each: the piece's length, and the token in three bytes,
    however small it is.
    """
    num_bytes = 4 * len(token_ids)
    lanes = int.from_bytes(struct.pack(f"<{len(token_ids)}I", *token_ids), "little")
    ones = int.from_bytes(b"\1\0\0\0" * len(token_ids), "little")
    if lanes & ones * 0xFFE00000:
        for token_id in token_ids:
            buffer.append(2)
            add_number(buffer, token_id)
        return
    seven, next_seven, rest = lanes & ones * 0x7F, lanes & ones * 0x3F80, lanes & ones * 0x1FC000
    buffer += (ones * 0x00808002 | seven << 8 | next_seven << 9 | rest << 10).to_bytes(num_bytes, "little")


def encode_block(num_cached: Sequence[int], ended_unix_s: int, pieces: bytes) -> bytes:
    """A block of pieces.

    Args:
        num_cached: tokens of each prompt that a prefix cache had.
        ended_unix_s: second in which a choice first ended; 0 before that.
        pieces: as ``add_piece`` writes them.
    """
    head = bytearray()
    for number in (*num_cached, ended_unix_s):
        add_number(head, number)
    return bytes(head) + pieces


def decode_block(
    content: bytes, num_prompts: int, num_choices: int, *, has_logprobs: bool = False, has_prompt: bool = False
) -> RecordedBlock:
    """The way back.

    Args:
        content: of the block.
        num_prompts: of the request.
        num_choices: over all prompts.
        has_logprobs: its request asked for log probabilities of the answer.
        has_prompt: and for those of its prompts.

    Raises:
        ValueError: it is no block.
    """
    try:
        numbers = iter(content)
        head = [read_number(numbers, next(numbers)) for _ in range(num_prompts + 1)]
        return RecordedBlock(tuple(head[:-1]), head[-1], list(_pieces(numbers, num_choices, has_logprobs, has_prompt)))
    except (StopIteration, IndexError, RuntimeError, struct.error) as error:
        raise ValueError("not a block of a stream") from error


def _pieces(numbers: Iterator[int], num_choices: int, has_logprobs: bool, has_prompt: bool) -> Iterator[Piece]:
    for first in numbers:
        choice = 0
        if num_choices > 1:
            choice, first = read_number(numbers, first), next(numbers)
        length = read_number(numbers, first)
        ids = [read_number(numbers, next(numbers)) for _ in range(length >> 1)]
        cause = _CAUSES[next(numbers)] if length & 1 else None
        logprobs = _positions(numbers) if has_logprobs else ()
        prompt = _positions(numbers) if has_prompt else ()
        yield Piece(choice, ids, ends=bool(length & 1), cause=cause, logprobs=logprobs, prompt=prompt)


def _positions(numbers: Iterator[int]) -> tuple[PositionLogprobs, ...]:
    return tuple([_position(numbers) for _ in range(read_number(numbers, next(numbers)))])


def _position(numbers: Iterator[int]) -> PositionLogprobs:
    num_top = read_number(numbers, next(numbers))
    sampled, *top = [_token(numbers) for _ in range(1 + num_top)]
    return PositionLogprobs(sampled, tuple(top))


def _token(numbers: Iterator[int]) -> TokenLogprob:
    token_id, rank = read_number(numbers, next(numbers)), read_number(numbers, next(numbers))
    (logprob,) = _FLOAT.unpack(bytes(islice(numbers, _FLOAT.size)))
    return TokenLogprob(token_id, logprob, rank)


def encode_places(places: Sequence[Placement | None]) -> bytes:
    """Where the generation of each prompt runs, as JSON: for a gateway that takes the stream over."""
    return orjson.dumps([None if place is None else _place_fields(place) for place in places])


def _place_fields(place: Placement) -> list[str]:
    worker = place.worker
    return [worker.worker_id, worker.incarnation, worker.address, place.handoff_id, place.router_address]


def decode_places(content: bytes, num_prompts: int) -> Sequence[Placement | None]:
    """The way back; nothing is known where nothing was written, or by another version."""
    try:
        found = [None if fields is None else _placement(*fields) for fields in orjson.loads(content or b"[]")]
    except (orjson.JSONDecodeError, TypeError):
        found = []
    return found if len(found) == num_prompts else [None] * num_prompts


def _placement(worker_id: str, incarnation: str, address: str, handoff_id: str, router_address: str) -> Placement:
    worker = WorkerRef(worker_id=worker_id, incarnation=incarnation, address=address, role=WorkerRole.DECODE)
    return Placement(decode=worker, handoff_id=handoff_id, router_address=router_address)


def encode_end(num_cached: Sequence[int]) -> bytes:
    """Facts that are known after the last token: cached tokens of each prompt, as JSON."""
    return orjson.dumps(list(num_cached))


def decode_end(content: bytes) -> tuple[int, ...]:
    """The way back; raises ``ValueError``."""
    return tuple(orjson.loads(content))
