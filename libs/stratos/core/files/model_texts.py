"""The part of a model folder that gateways read: configuration, tokenizer, templates; never its weights.

These files have a digest of their own, so a gateway that has them from elsewhere knows that they are the right ones.
"""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import CONFIG_NAME, MAX_JSON_BYTES

MAX_TEXT_FILES = 64
MAX_TEXT_BYTES = 256 * 1024 * 1024
"""Of all of them; published models have a tenth."""
_SUFFIXES = (".json", ".jinja")
_INDEX = ".safetensors.index.json"


def is_text_name(name: str) -> bool:
    """Whether a file of a model folder is one of its text files, by its name relative to the folder."""
    path = PurePosixPath(name)
    is_shown = not any(part.startswith(".") for part in path.parts)
    return path.suffix in _SUFFIXES and is_shown and not name.endswith(_INDEX)


def text_names(folder: Path) -> list[str]:
    """Names of a model's text files relative to its folder, sorted.

    Raises:
        InvalidCheckpoint: it is no model folder, or its files are too many or too large.
    """
    if not (folder / CONFIG_NAME).is_file():
        raise InvalidCheckpoint(f"{folder} holds no {CONFIG_NAME}; is it a Hugging Face model folder?")
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = sorted(filter(is_text_name, found))
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
