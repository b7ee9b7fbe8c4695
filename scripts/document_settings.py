#!/usr/bin/env python3
"""Write the tables of docs/configuration.md from the settings classes of the services.

python scripts/document_settings.py          rewrite the part between the markers
python scripts/document_settings.py --check  exit 1 when it is out of date
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from stratos.rpc.settings import ServiceSettings
from stratos.worker.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "configuration.md"
BEGIN, END = "<!-- settings: begin, made by scripts/document_settings.py -->", "<!-- settings: end -->"
SERVICES = ("gateway", "router", "prefill_worker", "decode_worker", "lora_registry", "autoscaler")


def docstrings(cls: type[Any]) -> dict[str, str]:
    """Field -> the docstring below it, own fields only."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def own_fields(cls: type[ServiceSettings]) -> list[str]:
    """Names that the class itself declares, in order."""
    return [name for name in cls.__annotations__ if name in cls.model_fields]


def default_of(cls: type[ServiceSettings], name: str) -> str:
    """The default as the environment would hold it."""
    field = cls.model_fields[name]
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    text = re.sub(r"stratos-\d+$", "stratos-UID", str(value))
    return f"`{text}`" if text else "empty"


def cell(text: str) -> str:
    """Text inside a table."""
    return text.replace("``", "`").replace("|", "\\|")


def table(cls: type[ServiceSettings], fields: list[str]) -> str:
    """A table of some fields of a class."""
    texts = docstrings(cls)
    rows = [f"| `{name.upper()}` | {default_of(cls, name)} | {cell(texts[name])} |" for name in fields]
    return "\n".join(["| name | default | meaning |", "|---|---|---|", *rows])


def section(service: str) -> str:
    """The part of one service."""
    module = importlib.import_module(f"stratos_{service}.settings")
    (cls,) = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, ServiceSettings) and value.__module__ == module.__name__
    ]
    prefix = cls.model_config["env_prefix"]
    more = ", those of both workers" if issubclass(cls, WorkerSettings) else ""
    head = f"### {service.replace('_', '-')}: `{prefix}*`\n\nThe common ones{more}, and:\n\n"
    return head + table(cls, own_fields(cls))


def generated() -> str:
    """Everything between the markers."""
    parts = [
        "### Common to all services\n\n" + table(ServiceSettings, own_fields(ServiceSettings)),
        "### Common to both workers\n\n" + table(WorkerSettings, own_fields(WorkerSettings)),
        *(section(service) for service in SERVICES),
    ]
    return "\n\n".join([BEGIN, *parts, END])


def rewritten(text: str) -> str:
    """The document with a fresh generated part."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + generated() + tail


def main() -> int:
    """Rewrite or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when the document is out of date")
    is_check = parser.parse_args().check
    text = DOCUMENT.read_text(encoding="utf-8")
    fresh = rewritten(text)
    if text == fresh:
        return 0
    if is_check:
        print(f"{DOCUMENT.relative_to(ROOT)} is out of date: run python scripts/document_settings.py", file=sys.stderr)
        return 1
    DOCUMENT.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
