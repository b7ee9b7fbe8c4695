"""Declarations of plans and tenants as YAML files, how they travel, and the changes that applying one makes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from stratos.common.errors import BadRequest

SECTIONS = ("policies", "plans", "tenants", "templates")
"""In the order in which their entries need one another."""
MAX_WHOLE_BYTES = 1_000_000
"""A larger declaration goes in parts: gateways take bodies of 2 MiB."""
PART_BYTES = 256 * 1024


def read_declaration(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        BadRequest: it cannot be read.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadRequest(f"{path} cannot be read: {error}") from error


def declaration_parts(wanted: Any) -> Iterator[Any]:
    """A declaration as bodies that a gateway takes: one, or where it is large several, to be applied in their order.

    Each part has the plans and policies that its entries name, so that it can be checked by itself.
    """
    if not _is_plain(wanted) or _num_bytes(wanted) <= MAX_WHOLE_BYTES:
        yield wanted
        return
    for section in SECTIONS:
        part, num_bytes = dict[str, Any](), 0
        for name, entry in (wanted.get(section) or {}).items():
            if num_bytes >= PART_BYTES:
                yield _with_named(section, part, wanted)
                part, num_bytes = {}, 0
            part[name] = entry
            num_bytes += _num_bytes({name: entry})
        if part:
            yield _with_named(section, part, wanted)


def _is_plain(wanted: Any) -> bool:
    """It has the form of a declaration; another one is for the gateway to refuse."""
    if not isinstance(wanted, dict) or not set(wanted) <= set(SECTIONS):
        return False
    sections = [{} if section is None else section for section in wanted.values()]
    return all(
        isinstance(section, dict) and all(isinstance(entry, dict) for entry in section.values()) for section in sections
    )


def _with_named(section: str, part: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    plans, policies = wanted.get("plans") or {}, wanted.get("policies") or {}
    found: dict[str, Any] = {section: part}
    if section == "tenants":
        found["plans"] = _named(plans, (terms.get("plan") for terms in part.values()))
    fields = [*found.get("plans", {}).values()]
    fields += [terms.get("overrides") or {} for terms in part.values()] if section == "tenants" else []
    if section in ("plans", "tenants"):
        found["policies"] = _named(policies, (one.get("content_policy") for one in fields))
    return found


def _named(entries: Mapping[str, Any], names: Iterable[Any]) -> dict[str, Any]:
    return {name: entries[name] for name in names if isinstance(name, str) and name in entries}


def _num_bytes(value: Any) -> int:
    return len(json.dumps(value, default=str))


def declaration_text(lines: Iterable[bytes]) -> Iterator[str]:
    """Pieces of a file for ``read_declaration``, of an answer that has a line for each entry; an older gateway's has
    one for all."""
    is_open = False
    """A section was begun, and has no entry yet."""
    for line in lines:
        if line.startswith(b'"'):
            yield ("\n" if is_open else "") + _entry_text(json.loads(b"{" + line.rstrip(b",\r") + b"}"))
            is_open = False
        elif line.startswith(b"{") and line.endswith(b"}"):
            yield yaml.safe_dump(json.loads(line), sort_keys=True, allow_unicode=True)
        else:
            if is_open:
                yield " {}\n"
            if section := line.strip(b'{},:"').decode():
                yield f"{section}:"
            is_open = bool(section)


def _entry_text(entry: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(entry), sort_keys=True, allow_unicode=True)
    return "  " + text.rstrip("\n").replace("\n", "\n  ") + "\n"


def changes_text(changes: Iterable[Mapping[str, Any]]) -> str:
    """Changes, one line per field; one that several parts of a declaration made is told once."""
    lines, told = [], set()
    for change in changes:
        if (change["kind"], change["name"]) in told:
            continue
        told.add((change["kind"], change["name"]))
        lines.append(f"{change['action']} {change['kind']} {change['name']}")
        for name, values in change["changes"].items():
            lines.append(f"  {name}: {json.dumps(values['before'])} -> {json.dumps(values['after'])}")
    return "\n".join(lines)
