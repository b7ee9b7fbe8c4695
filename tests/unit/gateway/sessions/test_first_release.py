"""What a worker of 0.1 gets: it refuses a Submit or an EmbedRequest with any field that it does not know."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from stratos.api.worker.v1 import decode_pb2, embed_pb2
from stratos.rpc.codec.unknown_fields import leave_out_later_fields
from tests.support.reference.first_release import unknown_fields

VALUES: dict[int, Any] = {
    FieldDescriptor.CPPTYPE_STRING: "x",
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_DOUBLE: 1.0,
    FieldDescriptor.CPPTYPE_FLOAT: 1.0,
}


def fill(message: Message) -> None:
    """Give every field a value."""
    for field in message.DESCRIPTOR.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            key, value = (field.message_type.fields_by_name[name].cpp_type for name in ("key", "value"))
            getattr(message, field.name)[VALUES.get(key, 1)] = VALUES[value]
        elif field.message_type is not None:
            place = getattr(message, field.name)
            inner = place.add() if field.is_repeated else place
            inner.SetInParent()
            fill(inner)
        else:
            value = VALUES.get(field.cpp_type, 1)
            value = b"x" if field.type == FieldDescriptor.TYPE_BYTES else value
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)


@pytest.mark.parametrize("kind", [decode_pb2.Submit, embed_pb2.EmbedRequest])
def test_a_worker_of_the_first_release_knows_every_field_that_is_left(kind: type[Message]) -> None:
    message = kind()
    fill(message)
    assert len(set(unknown_fields(message))) >= 4, "newer fields are filled"
    leave_out_later_fields(message)
    assert not set(unknown_fields(message))
