"""Fields of a message that this build does not know: a newer peer sent them, and they meant something."""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

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
