"""A second base model for gateways: the shipped draft model with words, a template and a context of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.support.paths import MODELS

SWAPPED = ("h", "w")
"""Two tokens that have each other's ids, so that an id tells which tokenizer it is of."""
CONTEXT = 512


def save_second_model(folder: Path) -> Path:
    """Write its folder; returns it."""
    shutil.copytree(MODELS / "draft", folder)
    definition = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words = definition["model"]["vocab"]
    words[SWAPPED[0]], words[SWAPPED[1]] = words[SWAPPED[1]], words[SWAPPED[0]]
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}), encoding="utf-8")
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text("second:" + template, encoding="utf-8")
    return folder
