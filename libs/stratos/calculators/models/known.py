"""Models that are known by name, and the shape of whatever a user names: a name, a folder, or single fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stratos.calculators.bounds import one_of
from stratos.calculators.models.config_json import shape_of
from stratos.calculators.models.shape import ModelShape
from stratos.calculators.tables import read_table
from stratos.common.errors import BadRequest
from stratos.core.files.model_files import read_json


@cache
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Source and configuration of each, by its name."""
    return read_table(__package__, "known_models.json")


def find_shape(model: str, changes: Sequence[str] = ()) -> ModelShape:
    """Shape of a model.

    Args:
        model: a known name, a ``config.json``, a folder that has one, or empty where ``changes`` say all.
        changes: ``FIELD=VALUE`` each, with the names of ``config.json``; they replace what the model says.

    Raises:
        BadRequest: neither a known name nor a path, or a change that cannot be read.
        InvalidCheckpoint: the configuration lacks a field, or a value makes no sense.
    """
    given = _fields_of(changes)
    if not model:
        if not given:
            raise BadRequest("--model must be a known name or a path, or --set must give the fields", param="--model")
        return shape_of({"architectures": ["LlamaForCausalLM"], **given}, "given fields", "--set")
    path = Path(model)
    if path.exists():
        fields, source = read_json(path / "config.json" if path.is_dir() else path), str(path)
    else:
        entry = one_of("--model", model, known_models())
        fields, source = entry["config"], entry["source"]
    shown = " ".join(("", *changes))
    return shape_of({**fields, **given}, model + shown, source)


def _fields_of(changes: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not (name and equals):
            raise BadRequest(f"--set {change}: it must be FIELD=VALUE", param="--set")
        try:
            fields[name] = json.loads(text)
        except ValueError as error:
            expected = "the value must be JSON, as in num_key_value_heads=8"
            raise BadRequest(f"--set {change}: {expected}", param="--set") from error
    return fields
