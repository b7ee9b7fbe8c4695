"""The part of a model folder that gateways read: configuration, tokenizer, templates; never its weights.

These files have a digest of their own, so a gateway that has them from elsewhere knows that they are the right ones.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import CONFIG_NAME, MAX_JSON_BYTES

MAX_TEXT_FILES = 64
MAX_TEXT_BYTES = 256 * 1024 * 1024
"""Of all of them; published models have a tenth."""
_SUFFIXES = (".json", ".jinja")
_INDEX = ".safetensors.index.json"


def text_names(folder: Path) -> list[str]:
    """Names of a model's text files relative to its folder, sorted.

    Raises:
        InvalidCheckpoint: it is no model folder, or its files are too many or too large.
    """
    if not (folder / CONFIG_NAME).is_file():
        raise InvalidCheckpoint(f"{folder} holds no {CONFIG_NAME}; is it a Hugging Face model folder?")
    found = [path.relative_to(folder) for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file()]
    shown = (path for path in found if not any(part.startswith(".") for part in path.parts))
    names = sorted(path.as_posix() for path in shown if not path.name.endswith(_INDEX))
    sizes = [(folder / name).stat().st_size for name in names]
    if len(names) > MAX_TEXT_FILES or sum(sizes) > MAX_TEXT_BYTES or max(sizes) > MAX_JSON_BYTES:
        raise InvalidCheckpoint(
            f"{folder}: configuration, tokenizer and templates are more than {MAX_TEXT_FILES} files or "
            f"{MAX_TEXT_BYTES} bytes"
        )
    return names


def text_digest(folder: Path) -> str:
    """SHA-256 (hex) over names, sizes and contents of a model's text files; raises like ``text_names``."""
    digest = hashlib.sha256()
    for name in text_names(folder):
        content = (folder / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
