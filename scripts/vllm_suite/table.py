"""Outcomes of both sides, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def compare(theirs: Mapping[str, Row], ours: Mapping[str, Row]) -> list[Row]:
    """One row for each test that asked a server on either side, in the order of names.

    ``verdict`` is ``both`` where both passed, ``here`` where it passed with vLLM and not with ours, ``there`` for the
    contrary, ``neither``, or ``skipped`` where the test skips itself.
    """
    names = sorted(name for name in {**theirs, **ours} if _asks(theirs.get(name)) or _asks(ours.get(name)))
    return [_row(name, theirs.get(name), ours.get(name)) for name in names]


def _asks(row: Row | None) -> bool:
    return row is not None and bool(row["requests"])


def _row(name: str, theirs: Row | None, ours: Row | None) -> Row:
    at_vllm, at_ours = _outcome(theirs), _outcome(ours)
    return {
        "test": name,
        "verdict": _verdict(at_vllm, at_ours),
        "vllm": at_vllm,
        "ours": at_ours,
        "reason": (ours or {}).get("reason", "") if at_ours != "passed" else (theirs or {}).get("reason", ""),
    }


def _outcome(row: Row | None) -> str:
    return "not run" if row is None else str(row["outcome"])


def _verdict(theirs: str, ours: str) -> str:
    if "skipped" in (theirs, ours):
        return "skipped"
    verdicts = {(True, True): "both", (True, False): "here", (False, True): "there", (False, False): "neither"}
    return verdicts[theirs == "passed", ours == "passed"]


def markdown(rows: Sequence[Row]) -> str:
    """Counts, and the tests that fail here alone with their reasons."""
    counts = Counter(row["verdict"] for row in rows)
    lines = [", ".join(f"{verdict} {counts[verdict]}" for verdict in ("both", "here", "there", "neither", "skipped"))]
    lines += [f"- {row['test']}: {row['reason'][:200]}" for row in rows if row["verdict"] == "here"]
    return "\n".join(lines)
