"""A continuation's state as bytes: facts as JSON, then the ids of each choice, in 1 to 3 bytes each."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from stratos.common.leb128 import add_number, read_number
from stratos.core.requests.continuation import ContinuationState
from stratos.core.requests.records import ChoiceState

_FORMAT = 1


def encode_state(state: ContinuationState) -> bytes:
    """A state, packed; the same for the same state."""
    facts = [
        _FORMAT, state.answer_id, state.seed, state.model_digest, state.adapter_digest, state.binding,
        state.expires_unix_s,
    ]  # fmt: skip
    head, buffer = orjson.dumps(facts), bytearray()
    add_number(buffer, len(head))
    buffer += head
    add_number(buffer, len(state.choices))
    for choices in state.choices:
        add_number(buffer, len(choices))
        for choice in choices:
            add_number(buffer, 2 * len(choice.emitted_ids) + choice.finished)
            for token_id in choice.emitted_ids:
                add_number(buffer, token_id)
    return bytes(buffer)


def decode_state(content: bytes) -> ContinuationState:
    """The way back.

    Raises:
        ValueError: another version wrote it.
    """
    try:
        numbers = iter(content)
        facts = orjson.loads(bytes(next(numbers) for _ in range(read_number(numbers, next(numbers)))))
        if facts[0] != _FORMAT:
            raise ValueError("a continuation of another version")
        _, answer_id, seed, model_digest, adapter_digest, binding, expires_unix_s = facts
        prompts = range(read_number(numbers, next(numbers)))
        choices = tuple(tuple(_choices(numbers)) for _ in prompts)
    except (StopIteration, RuntimeError, TypeError, IndexError) as error:
        raise ValueError("not a continuation") from error
    return ContinuationState(
        answer_id=answer_id,
        choices=choices,
        seed=seed,
        model_digest=model_digest,
        adapter_digest=adapter_digest,
        binding=binding,
        expires_unix_s=expires_unix_s,
    )


def _choices(numbers: Iterator[int]) -> Iterator[ChoiceState]:
    for index in range(read_number(numbers, next(numbers))):
        length = read_number(numbers, next(numbers))
        ids = tuple([read_number(numbers, next(numbers)) for _ in range(length >> 1)])
        yield ChoiceState(index=index, emitted_ids=ids, finished=bool(length & 1))
