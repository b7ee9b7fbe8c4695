"""A model folder for a GGUF file: small files that its metadata give, beside links to the file itself.

    config.json  generation_config.json  tokenizer.json  tokenizer_config.json  chat_template.jinja
    model.gguf -> /path/of/it.gguf                    (or model-00001-of-00003.gguf and so on, one link for each part)

Everything that reads model folders reads this one: gateways its texts, workers ``config.json`` and the linked weights.
The same file gives the same folder, byte by byte, so the digest of the model depends on it alone.  A folder appears
complete or not at all.
"""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.files.gguf.decoder_fields import decoder_fields
from stratos.core.files.gguf.parts import SUFFIX, GgufModel, read_gguf
from stratos.text.gguf.definition import tokenizer_config, tokenizer_definition
from stratos.text.gguf.vocabulary import read_vocabulary

TEMPLATE_KEY = "tokenizer.chat_template"


def folder_contents(model: GgufModel) -> dict[str, str]:
    """Name -> text of the files that the metadata give.

    Raises:
        InvalidCheckpoint: the model or its tokenizer is not supported, or contradicts itself.
    """
    fields = decoder_fields(model)
    vocabulary = read_vocabulary(model.metadata, fields["vocab_size"])
    ends = {"bos_token_id": vocabulary.bos_id, "eos_token_id": list(vocabulary.end_ids) or None}
    config = tokenizer_config(model.metadata, vocabulary, fields["max_position_embeddings"])
    contents = {
        "config.json": _json({**fields, **ends}),
        "generation_config.json": _json(ends),
        "tokenizer.json": _json(tokenizer_definition(model.metadata, vocabulary)),
        "tokenizer_config.json": _json(config),
    }
    if TEMPLATE_KEY in model.metadata:
        contents["chat_template.jinja"] = model.metadata.text(TEMPLATE_KEY)
    return contents


def write_model_folder(path: Path, into: Path) -> Path:
    """Write the model folder of a GGUF file; a folder that is there stays as it is.

    Args:
        path: the file, or the first part of a model that is split.
        into: the folder; its parent is created.

    Raises:
        InvalidCheckpoint: the file cannot be served; the message says why.
        BadRequest: the folder cannot be written.
    """
    if not path.is_file():
        raise InvalidCheckpoint(f"{path}: there is no such file")
    if into.is_dir():
        return into
    model = read_gguf(path.absolute())  # not resolved: a link's target may have a name that says nothing of parts
    contents = folder_contents(model)
    part = into.with_name(f".{into.name}.{secrets.token_hex(4)}")
    try:
        part.mkdir(parents=True)
        for name, text in contents.items():
            (part / name).write_text(text, encoding="utf-8")
        for name, target in _links(model).items():
            (part / name).symlink_to(target)
        _move(part, into)
    except OSError as error:
        raise BadRequest(f"the folder {into} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return into


def _move(part: Path, into: Path) -> None:
    try:
        part.rename(into)
    except OSError:
        if not into.is_dir():  # else another process wrote the same at the same time
            raise


def _links(model: GgufModel) -> dict[str, Path]:
    """Names that do not depend on the file's: they are part of the digest."""
    count = len(model.files)
    names = [f"model-{number:05d}-of-{count:05d}{SUFFIX}" for number in range(1, count + 1)]
    return dict(zip(names if count > 1 else [f"model{SUFFIX}"], (file.path for file in model.files), strict=True))


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
