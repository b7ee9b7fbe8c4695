"""Fields that workers of 0.1 do not know and refuse a message for; beside such workers gateways go on without them.

What is lost there is the name of a tenant in metrics, the time that a request waited before, kept prompts, a ban of
drafts, which those workers have none of, and cost tags and revision in a bill that a worker makes for a dead gateway.
The beginning of a continued answer (``num_prior_tokens``) stays: without it the answer would be billed twice, so such
a worker refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from google.protobuf.message import Message

NEWER_FIELDS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "terms": ("tenant_name", "age_ms", "pins", "kv_key"),
        "meter": ("cost_tags", "revision"),
        "sampling": ("drafts_off",),
    }
)
"""Of the messages in a ``Submit`` or an ``EmbedRequest``."""


def drop_newer_fields(message: Message) -> None:
    """Take them from a ``Submit`` or an ``EmbedRequest``."""
    for name, fields in NEWER_FIELDS.items():
        if name in message.DESCRIPTOR.fields_by_name and message.HasField(name):
            for field in fields:
                getattr(message, name).ClearField(field)
