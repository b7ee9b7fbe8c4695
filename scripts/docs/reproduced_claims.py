"""Write figures of committed reports of ``make reproduce`` and of a GPU into docs/published-claims.md and the README.

    python -m scripts.docs.reproduced_claims          rewrite both
    python -m scripts.docs.reproduced_claims --check  exit 1 when one is out of date
    python -m scripts.docs.reproduced_claims --take build/reproduce    commit that report's rows, then rewrite both

A report is ``benchmarks/results/reproduce-*.json``; rows of a GPU are made from the newest ``gpu-*.json``.  What stands
between the two marks of the document is made from them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.bench.harness import cpu_label
from scripts.docs.four_numbers import REPORT, with_numbers
from stratos.cli.reproduce.cells import is_disturbed, own_text
from stratos.cli.reproduce.documents import VERSION
from stratos.cli.reproduce.report import JSON_NAME
from stratos.reproduce.catalogue import ROWS
from stratos.reproduce.gpu_checks import COMMITTED, committed_checks
from stratos.reproduce.measuring import gpu_document

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCUMENT = ROOT / "docs" / "published-claims.md"
BEGIN, END = "<!-- reproduced claims -->", "<!-- end of reproduced claims -->"
NONE = "No report is committed yet: `make reproduce` makes one in ten minutes on a machine that does nothing else."
_MARKED = re.compile(f"{BEGIN}\n.*?{END}", re.DOTALL)


def reports(folder: Path = COMMITTED) -> dict[str, Mapping[str, Any]]:
    """Rows of each committed report of ``make reproduce``, by its file's name."""
    return {
        path.name: json.loads(path.read_text(encoding="utf-8"))["rows"]
        for path in sorted(folder.glob("reproduce-*.json"))
    }


def gpu_reports(folder: Path = COMMITTED) -> dict[str, Mapping[str, Any]]:
    """Rows of a GPU, by the file of each."""
    found: dict[str, dict[str, Any]] = {}
    for row, check in committed_checks(folder).items():
        found.setdefault(check.name, {})[row.name] = gpu_document(row, check)
    return dict(found)


def with_claims(text: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """The document with a table for each report, and the names of rows that none has."""
    parts = [_table(name, rows) for name, rows in found.items()] or [NONE]
    known = {name for rows in found.values() for name in rows}
    if found and (missing := [f"`{row.name}`" for row in ROWS if row.name not in known]):
        parts.append(f"Not run: {', '.join(missing)}.")
    return _MARKED.sub(lambda _: "\n\n".join([BEGIN, *parts, END]), text)


def _table(name: str, rows: Mapping[str, Any]) -> str:
    devices = {row["environment"].get("gpu") or row["environment"]["cpu"] for row in rows.values()}
    lines = [f"{', '.join(sorted(devices))} ([file](../benchmarks/results/{name})):", ""]
    lines += ["| row | claim | claimed | ours | verdict |", "|---|---|---|---|---|"]
    for row in ROWS:
        for answer in rows.get(row.name, {}).get("answers", ()):
            ours = own_text(answer["own"]) if answer["own"] else ""
            cells = (row.name, answer["claim"], answer["claimed"], ours, answer["verdict"])
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Rewrite or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when one is out of date")
    parser.add_argument("--take", type=Path, help="folder of a report whose rows are put beside the committed ones")
    args = parser.parse_args()
    if args.take is not None:
        print(*take(args.take / JSON_NAME), sep="\n")
    is_check = args.check
    is_old = False
    for path, fresh in made_documents().items():
        if fresh != path.read_text(encoding="utf-8"):
            is_old = True
            if not is_check:
                path.write_text(fresh, encoding="utf-8")
    return int(is_check and is_old)


def take(path: Path, folder: Path = COMMITTED) -> list[Path]:
    """Put a report's rows into the committed files of their form and machine, over those that are there.

    Raises:
        SystemExit: a row was measured by changed or unknown code, or while others used the machine; all of them are
            named.
    """
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    commits = {name: row["environment"]["commit"] for name, row in rows.items()}
    if unfit := [name for name, row in rows.items() if commits[name][-1:] in ("", "+") or is_disturbed(row)]:
        raise SystemExit(f"of changed or unknown code, or of a machine that others used: {', '.join(unfit)}")
    taken = []
    for form in ("short", "full"):
        own = {name: row for name, row in rows.items() if row["form"] == form and "cpu" in row["environment"]}
        for cpu, cores in sorted({(row["environment"]["cpu"], row["environment"]["cores"]) for row in own.values()}):
            where = {"cpu": cpu, "cores": cores}
            mine = {name: row for name, row in own.items() if where.items() <= row["environment"].items()}
            taken.append(_kept(folder, f"{'full-' if form == 'full' else ''}{cpu_label(cpu)}-{cores}core-cpu", mine))
    return taken


def _kept(folder: Path, name: str, rows: Mapping[str, Any]) -> Path:
    path = folder / f"reproduce-{name}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}
    content = {"version": VERSION, "rows": before | dict(rows)}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def made_documents() -> dict[Path, str]:
    """Both documents as the committed reports make them."""
    found = reports()
    return {
        DOCUMENT: with_claims(DOCUMENT.read_text(encoding="utf-8"), found | gpu_reports()),
        README: with_numbers(README.read_text(encoding="utf-8"), found[REPORT]),
    }


if __name__ == "__main__":
    raise SystemExit(main())
