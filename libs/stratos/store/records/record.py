"""One record, such as a plan, a tenant, an API key or an adapter, with the version of its last change.

A record's text is ``<version> <JSON>``:

    1764000000123456 {"schema": 1, "deleted": false, "began": 0, "value": {...}}

``version`` is given by the store at the write and grows with every change of any record, also when Redis comes back
with older content: it is the time in microseconds.  A deletion is a record too, a tombstone (``deleted``); a record
that is absent says nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from stratos.store.records.values import MalformedValue, RecordValue, decode_value

SCHEMA = 1
"""Of the JSON part; a record of a newer schema is skipped and reported, as one that cannot be read."""
V = TypeVar("V")
_TEXT = re.compile(r"(?P<version>[0-9]{1,16}) (?P<body>.*)\Z", re.DOTALL)


class Kind(StrEnum):
    """Subject of a record, in the order in which a store is read: a key needs its tenant, a tenant its plan, a plan
    its policy."""

    POLICY = "policy"
    """Policy for the text of requests and answers."""
    TEMPLATE = "template"
    """A prompt with variables."""
    PLAN = "plan"
    DATA_KEY = "data_key"
    """A tenant's data key, wrapped."""
    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"
    """A revision of a base model."""
    ALIAS = "alias"
    """A further name of models, or the split of one name."""
    ROLLOUT = "rollout"
    """How a model's requests go over to another revision."""
    CHOICE = "choice"
    """Rules that choose a model for who asks for ``auto``."""
    ADAPTER = "adapter"
    BLOCK = "block"
    """A model or adapter that is refused for now."""


class MalformedRecord(Exception):
    """A record cannot be read; the message names the reason and never the content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One version of one record."""

    kind: Kind
    id: str
    """A policy's, plan's or tenant's name, the id of a data key's tenant, a key's id, an alias's name, the
    name of a roll-out's model, ``<name>/<digest>`` of a model, ``<owner>/<name>`` of an adapter, a template or
    rules (the name alone where all tenants have it), ``<scope>/<name>`` of a block."""
    version: int
    """Microseconds; a higher one is newer."""
    is_deleted: bool = False
    began: int = 0
    """When the work began that made this version, where that decides which of two is the newer one: microseconds."""
    value: RecordValue | None = field(default=None, repr=False)
    """``None`` in a tombstone."""
    text: str = field(repr=False)
    """Text as it is stored."""

    @property
    def remains(self) -> Mapping[str, Any]:
        """Remains of a deleted record in its tombstone, for people; empty where there are none."""
        value = json.loads(self.text.partition(" ")[2]).get("value")
        return value if isinstance(value, dict) else {}


def value_as(value_type: type[V], record: Record | None) -> V | None:
    """The value of a record, where it is of a type: ``None`` for no record, a tombstone, or another type."""
    return record.value if record is not None and isinstance(record.value, value_type) else None


def parse_record(kind: Kind, record_id: str, text: str) -> Record:
    """The record that a text holds.

    Raises:
        MalformedRecord: it does not hold one, or one of a newer schema.
    """
    if (match := _TEXT.match(text)) is None:
        raise MalformedRecord("there is no version")
    try:
        body = json.loads(match["body"])
    except ValueError:
        raise MalformedRecord("the content is not JSON") from None
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise MalformedRecord(f"the content is not an object of schema {SCHEMA}")
    is_deleted, began = body.get("deleted") is True, body.get("began", 0)
    try:
        value = None if is_deleted else decode_value(kind.value, record_id, body.get("value"))
    except MalformedValue as error:
        raise MalformedRecord(str(error)) from None
    return Record(
        kind=kind,
        id=record_id,
        version=int(match["version"]),
        is_deleted=is_deleted,
        began=began if isinstance(began, int) else 0,
        value=value,
        text=text,
    )


def version_of(text: str | None) -> int:
    """The version of a stored text; 0 for one that is absent or has none, as the store's scripts count it."""
    version, separator, _ = (text or "").partition(" ")
    return int(version) if separator and version.isascii() and version.isdecimal() else 0


def make_body(value: Mapping[str, Any], *, is_deleted: bool = False, began: int = 0) -> str:
    """The JSON part of a record."""
    body = {"schema": SCHEMA, "deleted": is_deleted, "began": began, "value": dict(value)}
    return json.dumps(body, separators=(",", ":"))
