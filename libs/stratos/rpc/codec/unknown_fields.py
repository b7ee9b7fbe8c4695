"""Fields that one of two builds does not know: a newer peer's are refused, and a worker of 0.1 gets none of ours."""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from stratos.common.errors import FeatureUnavailable

LAST_OF_0_1 = {"EmbedRequest": 9, "Submit": 13, "SamplingParams": 18, "RequestTerms": 6, "MeterTag": 8}
"""Highest field of messages that have later ones, or may."""


def refuse_unknown_fields(message: Message) -> None:
    """Refuse a message with unknown fields, its own or those of a message in it.

    Raises:
        FeatureUnavailable: the text names the first of them.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown):
        number, kind = unknown[0].field_number, message.DESCRIPTOR.full_name
        raise FeatureUnavailable(f"this build does not know field {number} of {kind}")
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for inner in value if field.is_repeated else (value,):
            refuse_unknown_fields(inner)


def leave_out_later_fields(message: Message) -> None:
    """Clear what 0.1 does not know of an attempt or a call that embeds, and refuses; no answer depends on it.

    What does change an answer needs a feature (``core.features``), without which the message is not made.
    """
    for field, value in message.ListFields():
        if field.number > LAST_OF_0_1.get(message.DESCRIPTOR.name, field.number):
            message.ClearField(field.name)
        elif field.message_type is not None and not field.is_repeated:
            leave_out_later_fields(value)
