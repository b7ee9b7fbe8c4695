"""Models of ``stratos up`` as its flags name them: a path, or a name and a path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from stratos.cli.local.options import UpOptions
from stratos.common.errors import BadRequest
from stratos.text.gguf.folder import is_gguf

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
FLAG = "--model"


def options_for(models: Sequence[str], shipped: Path | None, make: Callable[..., UpOptions]) -> UpOptions:
    """Options of a platform with these models, the first of which is the gateways' home.

    Args:
        models: as the flags have them; none takes the shipped model.
        shipped: the shipped model, if there is one.
        make: options from a model's path, its name, and what the other flags say.

    Raises:
        BadRequest: there is no model, two have one name, or a further one has a name that no process can have.
    """
    if not models and shipped is None:
        raise BadRequest("no shipped model was found here; give a Hugging Face model folder with --model PATH")
    made = [
        make(model_path=path, name=name, num_models=max(1, len(models)), shipped_model_path=shipped)
        for name, path in (parse_model(text) for text in models or [str(shipped)])
    ]
    names = [options.model_name for options in made]
    for name, count in Counter(names).items():
        if count > 1:
            raise BadRequest(f"{FLAG}: {count} models have the name {name!r}; give it as {FLAG} NAME=PATH", param=FLAG)
    for name in names[1:]:
        if not _NAME.match(name):
            text = f"{FLAG}: {name!r} cannot name the workers of a model; give another one as {FLAG} NAME=PATH"
            raise BadRequest(text, param=FLAG)
    return replace(made[0], more_models=tuple(made[1:]))


def parse_model(text: str) -> tuple[str, Path]:
    """Name and path of a model; the name is empty where only a path is given, as every path is that exists."""
    name, is_named, rest = text.partition("=")
    path = Path(text)
    if is_named and _NAME.match(name) and not path.exists():
        path = Path(rest)
    else:
        name = ""
    # a GGUF file's link is not followed: its name is the model's, and what tells the parts
    return name, path.absolute() if is_gguf(path) else path.resolve()
