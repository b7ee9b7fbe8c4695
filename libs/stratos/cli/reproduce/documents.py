"""The report's JSON: a document for each row that ran, with its own conditions, hardware, commit and command.

It is the state of an unfinished report, too: a row is written as soon as it has ended, and a next call of the same
form, seed, threads and commit goes on with the rows that are missing, and with those that others disturbed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratos.cli.reproduce.cells import is_disturbed
from stratos.common.errors import BadRequest
from stratos.reproduce.record.conditions import RowConditions

VERSION = 1


class ReportFile:
    """Rows by name, kept in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, Mapping[str, Any]] = _read(path)

    def has(self, name: str, conditions: RowConditions, commit: str | None) -> bool:
        """The row was measured under these conditions, by this code or, for ``None``, by any that has a name.

        What was measured while others used the machine compares with nothing, so it is as if it were not there, and so
        is a row of a GPU that was read from a committed file. Rows of a GPU have no threads.
        """
        found = self.rows.get(name)
        if found is None or (found["form"], found["seed"]) != (str(conditions.form), conditions.seed):
            return False
        if "gpu" not in found["environment"] and found["threads"] != conditions.threads:
            return False
        if is_disturbed(found) or found["environment"].get("file"):
            return False
        measured = found["environment"]["commit"]  # code that is being changed, or of no repository, has no name
        return bool(measured) and "+" not in measured and commit in (None, measured)

    def put(self, document: Mapping[str, Any]) -> None:
        """Keep a row, in memory and in the file, which is never half written."""
        self.rows[document["name"]] = document
        self._path.parent.mkdir(parents=True, exist_ok=True)
        half = self._path.with_suffix(".part")
        half.write_text(json.dumps({"version": VERSION, "rows": self.rows}, indent=1) + "\n", encoding="utf-8")
        half.replace(self._path)


def _read(path: Path) -> dict[str, Mapping[str, Any]]:
    """Raises ``BadRequest`` for a file that is not a report."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise BadRequest(f"{path} is of version {content['version']}; remove it", param="--out")
        return dict(content["rows"])
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"{path} is not a report of this command; remove it", param="--out") from error
