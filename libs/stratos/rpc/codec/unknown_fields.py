"""Fields that one of two builds does not know: a newer peer's are refused, and a worker of 0.1 gets none of ours."""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from stratos.api.worker.v1 import decode_pb2
from stratos.common.errors import FeatureUnavailable


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


def leave_out_later_fields(message: decode_pb2.Submit) -> None:
    """Clear what 0.1 does not know of an attempt, and refuses; nothing that an answer depends on.

    What does change an answer needs a feature (``core.features``), without which the message is not made.
    """
    parts = ((message, 13), (message.sampling, 18), (message.terms, 6), (message.meter, 8))
    for part, last_of_0_1 in parts:
        for field, _ in part.ListFields():
            if field.number > last_of_0_1:
                part.ClearField(field.name)
