"""Objects with words in place of values: each word becomes a text within a string, so no value can become structure.

The whole is parsed before it is filled, and each string is gone through once: a value that looks like a word stays as
it is.  A string that holds a word without a value is left out, with its key or as a part of its list.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from stratos_autoscaler.kubernetes.api import Object
from stratos_autoscaler.model_resources.wanted.sources import Words

MAX_NAME = 63
_NAME = re.compile(r"__NAME_([a-z-]+)__MODEL__([a-z0-9-]*)__")
_LEFT_OUT = object()


def filled(found: Object, words: Words, head: str) -> Object:
    """An object of the chart for one Model.

    Args:
        found: an object with words.
        words: text of each.
        head: of names of objects.
    """
    names = re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)))
    made = _filled(found, words, names, head)
    assert isinstance(made, dict)
    return made


def object_name(head: str, end: str) -> str:
    """Name of an object, by the rule of the chart's ``stratos.nameWithin``: a long one keeps its end."""
    name = f"{head}-{end}"
    if len(name) <= MAX_NAME:
        return name
    return f"{head[: MAX_NAME - 10 - len(end)].removesuffix('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}-{end}"


def digest_of(found: Any) -> str:
    """Sixteen digits that tell one content from another."""
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _filled(value: Any, words: Words, names: re.Pattern[str], head: str) -> Any:
    if isinstance(value, dict):
        made = {key: _filled(inner, words, names, head) for key, inner in value.items()}
        return {key: inner for key, inner in made.items() if inner is not _LEFT_OUT}
    if isinstance(value, list):
        return [made for inner in value if (made := _filled(inner, words, names, head)) is not _LEFT_OUT]
    if not isinstance(value, str) or "__" not in value:
        return value
    if any(words[word] is None for word in names.findall(value)):
        return _LEFT_OUT
    model = words["__MODEL__"] or ""
    pieces, at = [], 0
    for name in _NAME.finditer(value):
        pieces += [_replaced(value[at : name.start()], words, names), object_name(head, f"{name[1]}{model}{name[2]}")]
        at = name.end()
    return "".join([*pieces, _replaced(value[at:], words, names)])


def _replaced(text: str, words: Words, names: re.Pattern[str]) -> str:
    return names.sub(lambda found: words[found[0]] or "", text)
