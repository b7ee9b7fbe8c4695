"""Messages as 0.1 knows them, which refuses a Submit or an EmbedRequest with any other field."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message

KNOWN = {"EmbedRequest": 9, "EmbedInput": 1, "Submit": 13, "MeterTag": 8, "SamplingParams": 18, "Watermark": 4,
         "Grammar": 2, "TokenSequence": 1, "ChoiceState": 3, "WorkerRef": 4, "TraceContext": 2, "AdapterRef": 2,
         "RequestTerms": 6}  # fmt: skip
"""Highest field of each message in the release, whose numbers have no gaps."""


def unknown_fields(message: Message) -> Iterator[tuple[str, str]]:
    """Fields that have a value and are not in the release."""
    for field, value in message.ListFields():
        if field.number > KNOWN[message.DESCRIPTOR.name]:
            yield message.DESCRIPTOR.name, field.name
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else (value,):
                yield from unknown_fields(inner)
