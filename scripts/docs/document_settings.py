#!/usr/bin/env python3
"""Write the tables of settings from the settings classes of the services.

python -m scripts.docs.document_settings          rewrite the parts between the markers
python -m scripts.docs.document_settings --check  exit 1 when one is out of date

docs/configuration.md has the settings of ``first_settings``, docs/configuration-all.md has all.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from scripts.docs.first_settings import FIRST, FirstSettings
from stratos.rpc.settings import ServiceSettings, Setting, settings_of
from stratos.worker.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
FIRST_PAGE, FULL_PAGE = ROOT / "docs" / "configuration.md", ROOT / "docs" / "configuration-all.md"
BEGIN, END = "<!-- settings: begin, made by scripts/docs/document_settings.py -->", "<!-- settings: end -->"
SERVICES = ("gateway", "router", "prefill_worker", "decode_worker", "lora_registry", "autoscaler")


@functools.cache
def docstrings(cls: type[Any]) -> dict[str, str]:
    """Field -> the docstring below it, own fields only."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def text_of(cls: type[Any], name: str) -> str:
    """The docstring of a field; a subclass may repeat the field with another default and text."""
    texts = (
        docstrings(cast("Any", base)).get(name)
        for base in cls.__mro__
        if issubclass(base, ServiceSettings) or base is cls
    )
    return next(text for text in texts if text)


def service_class(service: str) -> type[ServiceSettings]:
    """The settings class of a service."""
    module = importlib.import_module(f"stratos_{service}.settings")
    (cls,) = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, ServiceSettings) and value.__module__ == module.__name__
    ]
    return cls


def chart_path(setting: Setting) -> str:
    """The setting in the values of a chart, below ``<service>.config``."""
    return ".".join(re.sub(r"_(\w)", lambda match: match[1].upper(), name) for name in setting.path)


def default_of(setting: Setting) -> str:
    """The default as the environment would hold it."""
    value = setting.default
    if value is dataclasses.MISSING:
        return "required"
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    text = re.sub(r"stratos-\d+$", "stratos-UID", str(value))
    if isinstance(value, dict):
        text = json.dumps({key: dataclasses.asdict(held) for key, held in value.items()})
    elif setting.is_json:
        text = json.dumps([_plain(item) for item in value])
    return f"`{text}`" if text else "empty"


def _plain(item: object) -> object:
    return dataclasses.asdict(item) if dataclasses.is_dataclass(item) and not isinstance(item, type) else item


def cell(text: str) -> str:
    """Text inside a table."""
    return text.replace("``", "`").replace("|", "\\|")


def table(cls: type[ServiceSettings], settings: Iterable[Setting]) -> str:
    """A table of values."""
    rows = []
    for setting in settings:
        owner = cls if len(setting.path) == 1 else setting.owner
        text = cell(text_of(owner, setting.path[-1]))
        rows.append(f"| `{'__'.join(setting.path).upper()}` | {default_of(setting)} | {text} |")
    return "\n".join(["| name | default | meaning |", "|---|---|---|", *rows])


def tables(cls: type[ServiceSettings], without: type[ServiceSettings] | None = None) -> str:
    """The values of a class that ``without`` does not have or that differ, then its groups."""
    shared = {(setting.path, str(setting.default)) for setting in settings_of(without)} if without else set()
    own = [setting for setting in settings_of(cls) if (setting.path, str(setting.default)) not in shared]
    single = [setting for setting in own if len(setting.path) == 1]
    parts = [table(cls, single)] if single else []
    for path in dict.fromkeys(setting.path[:-1] for setting in own if len(setting.path) > 1):
        group = [setting for setting in own if setting.path[:-1] == path]
        summary = str(inspect.getdoc(group[0].owner)).partition("\n")[0]
        parts.append(f"`{'.'.join(path)}`: {cell(summary)}\n\n{table(cls, group)}")
    return "\n\n".join(parts)


def section(service: str) -> str:
    """The part of one service."""
    cls = service_class(service)
    is_worker = issubclass(cls, WorkerSettings)
    more = ", those of both workers" if is_worker else ""
    head = f"### {service.replace('_', '-')}: `{cls.env_prefix}*`\n\nThe common ones{more}, and:\n\n"
    return head + tables(cls, WorkerSettings if is_worker else ServiceSettings)


def first_section(first: FirstSettings) -> str:
    """A table of the first page.

    Raises:
        ValueError: a name is not one of the class.
    """
    module, _, name = first.module.partition(":")
    cls = getattr(importlib.import_module(module), name)
    by_name = {"__".join(setting.path).upper(): setting for setting in settings_of(cls)}
    if unknown := [name for name in first.names if name not in by_name]:
        raise ValueError(f"{cls.__name__} has no {', '.join(unknown)}")
    prefixes = ", ".join(f"`{prefix}*`" for prefix in first.prefixes)
    return f"### {first.title}: {prefixes}\n\n{table(cls, [by_name[name] for name in first.names])}"


def first_part() -> str:
    """The part between the markers of the first page."""
    return "\n\n".join([BEGIN, *map(first_section, FIRST), END])


def full_part() -> str:
    """The part between the markers of the page with all settings."""
    parts = [
        "### Common to all services\n\n" + tables(ServiceSettings),
        "### Common to both workers\n\n" + tables(WorkerSettings, ServiceSettings),
        *(section(service) for service in SERVICES),
    ]
    return "\n\n".join([BEGIN, *parts, END])


def rewritten(text: str, part: str) -> str:
    """The document with ``part`` where the generated one is."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + part + tail


def main() -> int:
    """Rewrite or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when a document is out of date")
    is_check = parser.parse_args().check
    stale = 0
    for page, part in ((FIRST_PAGE, first_part()), (FULL_PAGE, full_part())):
        text = page.read_text(encoding="utf-8")
        fresh = rewritten(text, part)
        if is_check and text != fresh:
            stale += 1
            advice = "run python -m scripts.docs.document_settings"
            print(f"{page.relative_to(ROOT)} is out of date: {advice}", file=sys.stderr)
        elif text != fresh:
            page.write_text(fresh, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
