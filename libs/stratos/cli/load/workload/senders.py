"""Who sends: tenants by their keys, and models or adapters, each with a weight."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from stratos.common.errors import BadRequest

_FIELDS = {"name": str, "key": str, "class": str, "weight": (int, float)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """One tenant; its key decides its class on the server, the class here is a label of the report."""

    name: str = "default"
    key: str = field(default="none", repr=False)
    class_name: str = ""
    weight: float = 1.0
    """Share of the sessions, over the sum of all weights."""

    def __post_init__(self) -> None:
        """Refuse a key that no header can hold."""
        if not (self.key.isascii() and self.key.isprintable()):
            raise BadRequest(f"the key of tenant {self.name!r} has characters that no key has", param="--key")


@dataclass(frozen=True, slots=True)
class WeightedModel:
    """A model or adapter by the name that requests have."""

    name: str
    weight: float = 1.0


def read_senders(path: Path) -> tuple[Sender, ...]:
    """Read a file of tenants: a JSON list of objects with ``name``, ``key``, and optionally ``class`` and ``weight``.

    Raises:
        BadRequest: it cannot be read, or an entry is wrong; names the entry.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}", param="--tenants") from None
    except ValueError as error:
        raise BadRequest(f"{path} is not JSON: {error}", param="--tenants") from None
    if not isinstance(content, list) or not content:
        raise BadRequest(f"{path} must hold a list of tenants", param="--tenants")
    senders = tuple(_sender(path, number, entry) for number, entry in enumerate(content, 1))
    if len({sender.name for sender in senders}) < len(senders):
        raise BadRequest(f"{path} names a tenant twice", param="--tenants")
    return senders


def _sender(path: Path, number: int, entry: Any) -> Sender:
    where = f"{path}, entry {number}"
    if not isinstance(entry, dict) or not {"name", "key"} <= entry.keys() <= _FIELDS.keys():
        raise BadRequest(f"{where} needs name and key, may have class and weight, and nothing else", param="--tenants")
    for name, value in entry.items():
        if not isinstance(value, _FIELDS[name]) or isinstance(value, bool):  # type: ignore[arg-type]
            raise BadRequest(f"{where}: {name} has a wrong type", param="--tenants")
    if not 0 < entry.get("weight", 1) < math.inf:
        raise BadRequest(f"{where}: weight must be above 0", param="--tenants")
    return Sender(
        name=entry["name"], key=entry["key"], class_name=entry.get("class", ""), weight=float(entry.get("weight", 1))
    )


def parse_models(texts: Sequence[str]) -> tuple[WeightedModel, ...]:
    """Read ``--model NAME`` or ``NAME=WEIGHT``, as often as it was given; raises ``BadRequest``."""
    return tuple(_model(text) for text in texts)


def _model(text: str) -> WeightedModel:
    name, equals, weight = text.rpartition("=")
    if not equals:
        return WeightedModel(text)
    try:
        found = WeightedModel(name, float(weight))
    except ValueError:
        return WeightedModel(text)
    if not (name and 0 < found.weight < math.inf):
        raise BadRequest(f"--model {text!r}: a name and a weight above 0 are needed", param="--model")
    return found


def drawn_sender(rng: Random, senders: Sequence[Sender]) -> Sender:
    """One of them, by weight."""
    return rng.choices(senders, [sender.weight for sender in senders])[0]


def drawn_model(rng: Random, models: Sequence[WeightedModel]) -> str:
    """The name of one of them, by weight."""
    return rng.choices(models, [model.weight for model in models])[0].name
