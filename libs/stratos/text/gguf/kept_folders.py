"""Model folders of GGUF files, kept between runs, or made for the time of one command.

    <parent>/<state of the files>/<name>/     as ``write_model_folder`` writes it

The name is that of the file, because clients use a folder's name as "model".  A file that changed has another state, so
its folder is written again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.parts import is_gguf, model_stem, read_gguf
from stratos.core.files.handed_digest import state_of
from stratos.text.gguf.folder import write_model_folder

REVISION = 2
"""Counts up when a folder of the same file has other contents than before."""


def gguf_folder(path: Path, parent: Path) -> Path:
    """The model folder of a file below ``parent``, written where it is not there.

    Raises:
        InvalidCheckpoint: the file cannot be served.
        BadRequest: the folder cannot be written.
    """
    if not path.is_file():
        raise InvalidCheckpoint(f"{path}: there is no such file")
    files = [file.path for file in read_gguf(path.absolute()).files]
    named = f"{REVISION} {path.absolute()} {state_of(files)}"
    return write_model_folder(path, parent / hashlib.sha256(named.encode()).hexdigest()[:16] / model_stem(path))


@contextmanager
def folder_for(path: Path) -> Iterator[Path]:
    """The model folder that a command was given, or one for its GGUF file, which is gone when the command ends."""
    if not is_gguf(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="stratos-gguf-") as parent:
        yield write_model_folder(path, Path(parent) / model_stem(path))
